#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace longspan::test {

// What the process asks of the system about files, seen where it asks: test programs that are
// linked with disk.cc have the calls of their own.

/// While it lives, every other call of open, pread, write and fsync is interrupted: it fails with
/// EINTR and does nothing.
class Interruptions {
 public:
  enum Call { open, pread, write, fsync };

  Interruptions();
  ~Interruptions();
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

  /// How many of these calls have been interrupted.
  int64_t count(Call call) const;
};

/// While it lives, writes down what happens to files and folders below a folder, all of which are
/// on the disk at first, and then says what a disk may hold where power is lost.
class DiskRecord {
 public:
  explicit DiskRecord(const std::string& root);
  ~DiskRecord();
  DiskRecord(const DiskRecord&) = delete;
  DiskRecord& operator=(const DiskRecord&) = delete;

  /// Events so far.
  size_t size() const { return events_.size(); }

  /// Files by their path below the root, and folders, whose paths end in "/".
  using Tree = std::map<std::string, std::string>;
  /// Calls `check(events, tree)` for whatever may be there after power is lost behind each number
  /// of events: what has been written to files since they were last synced is there, half there or
  /// gone, in all files alike; and in any choice of folders names are as they were when these were
  /// last synced. Equal trees are checked once between two numbers of `since`.
  void replay(const std::vector<size_t>& since,
              const std::function<void(size_t, const Tree&)>& check) const;

  // What the calls tell it.
  enum class Kind : uint8_t { file, folder, write, sync, rename, exchange, remove };
  struct Event {
    Kind kind;
    std::string path, to, bytes;
  };
  void add(Event event);

 private:
  std::string root_;
  Tree before_;
  std::vector<Event> events_;
};

/// Makes these files and folders in an empty folder.
void make_tree(const std::string& folder, const DiskRecord::Tree& tree);

}  // namespace longspan::test
