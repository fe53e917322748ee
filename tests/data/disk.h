#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace longspan::test {

// Intercepts the process's system calls on files. A test program that links disk.cc has its own
// versions of these calls.

/// While an object of this class exists, every other call of open, pread, write and fsync is
/// interrupted: it fails with EINTR and does nothing.
class Interruptions {
 public:
  enum Call { open, pread, write, fsync };

  Interruptions();
  ~Interruptions();
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

  /// Returns the number of these calls that were interrupted.
  int64_t count(Call call) const;
};

/// Records what happens to files and folders below a folder while the object exists, and then lists
/// what a disk may hold after a power loss. Everything in the folder counts as synced at first.
class DiskRecord {
 public:
  explicit DiskRecord(const std::string& root);
  ~DiskRecord();
  DiskRecord(const DiskRecord&) = delete;
  DiskRecord& operator=(const DiskRecord&) = delete;

  /// Returns the number of events so far.
  size_t size() const { return events_.size(); }

  /// Maps paths below the root to the contents of files. Folders have paths that end in "/".
  using Tree = std::map<std::string, std::string>;
  /// Calls `check(events, tree)` for every state that may exist if power is lost after `events`
  /// events. Bytes written to files since their last sync are all there, half there or gone, the
  /// same for all files. In any subset of folders, names fall back to those of the last sync. Equal
  /// trees are checked once between two values of `since`.
  void replay(const std::vector<size_t>& since,
              const std::function<void(size_t, const Tree&)>& check) const;

  // The intercepted calls report events here.
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

/// Creates these files and folders in an empty folder.
void make_tree(const std::string& folder, const DiskRecord::Tree& tree);

}  // namespace longspan::test
