#include "tests/data/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>

#include "tests/harness/scratch.h"

namespace longspan::test {
namespace {

constinit Interruptions* interrupting = nullptr;
constinit DiskRecord* recording = nullptr;
int64_t calls[4];

/// Says whether this call must fail.
bool interrupted(Interruptions::Call call) {
  if (interrupting == nullptr || calls[call]++ % 2 == 1) return false;
  errno = EINTR;
  return true;
}

std::string path_of(int file) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t n = readlink(link.c_str(), path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

/// Records an event if `done`, and preserves errno.
void note(bool done, DiskRecord::Kind kind, const std::string& path, const std::string& to = {},
          std::string bytes = {}) {
  if (recording == nullptr || !done) return;
  const int error = errno;
  recording->add({kind, path, to, std::move(bytes)});
  errno = error;
}

/// Holds a file or folder, in its current and in its last synced state.
struct Item {
  bool folder = false;
  std::string bytes, synced;
  std::map<std::string, std::shared_ptr<Item>> names, synced_names;

  void sync() {
    synced = bytes;
    synced_names = names;
  }
};
using Tree = DiskRecord::Tree;

/// Holds the files and folders below a root.
class Disk {
 public:
  explicit Disk(const Tree& tree) {
    root_->folder = true;
    for (const auto& [path, bytes] : tree) make(path, path.ends_with('/'))->bytes = bytes;
    for_each(*root_, [](Item& item) { item.sync(); });
  }

  void apply(const DiskRecord::Event& e) {
    using enum DiskRecord::Kind;
    if (e.kind == file || e.kind == folder) {
      make(e.path, e.kind == folder);
    } else if (e.kind == write) {
      at(e.path) += e.bytes;
    } else if (e.kind == sync) {
      item(e.path)->sync();
    } else if (e.kind == remove) {
      above(e.path)->names.erase(name_of(e.path));
    } else {
      std::shared_ptr<Item>& from = above(e.path)->names[name_of(e.path)];
      std::shared_ptr<Item>& to = above(e.to)->names[name_of(e.to)];
      std::swap(from, to);
      if (e.kind == rename) above(e.path)->names.erase(name_of(e.path));
    }
  }

  /// Returns the folders with unsynced names.
  std::vector<const Item*> unsynced() {
    std::vector<const Item*> all;
    for_each(*root_, [&](Item& item) {
      if (item.names != item.synced_names) all.push_back(&item);
    });
    return all;
  }

  /// Returns the files and folders that remain if the folders `lost` fall back to their synced
  /// names and files keep the fraction `kept` of the bytes written since their last sync.
  Tree left(const std::set<const Item*>& lost, double kept) const {
    Tree tree;
    add(*root_, "", lost, kept, tree);
    return tree;
  }

 private:
  static std::string name_of(const std::string& path) {
    const std::string plain = path.ends_with('/') ? path.substr(0, path.size() - 1) : path;
    return plain.substr(plain.rfind('/') + 1);
  }

  std::shared_ptr<Item> item(const std::string& path) {
    std::shared_ptr<Item> now = root_;
    for (size_t begin = 0; begin < path.size() && now;) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const auto found = now->names.find(path.substr(begin, end - begin));
      now = found == now->names.end() ? nullptr : found->second;
      begin = end + 1;
    }
    EXPECT_NE(now, nullptr) << path;
    return now;
  }
  std::string& at(const std::string& path) { return item(path)->bytes; }
  std::shared_ptr<Item> above(const std::string& path) {
    const size_t slash = path.rfind('/', path.size() - 2);
    return item(slash == std::string::npos ? "" : path.substr(0, slash));
  }
  std::shared_ptr<Item> make(const std::string& path, bool folder) {
    std::shared_ptr<Item>& made = above(path)->names[name_of(path)];
    if (!made) made = std::make_shared<Item>();
    made->folder = folder;
    return made;
  }

  template <class F>
  static void for_each(Item& item, F&& f) {
    f(item);
    for (auto& [name, inner] : item.names) for_each(*inner, f);
  }

  static void add(const Item& folder, const std::string& path, const std::set<const Item*>& lost,
                  double kept, Tree& tree) {
    for (const auto& [name, inner] : lost.count(&folder) ? folder.synced_names : folder.names) {
      if (inner->folder) {
        tree[path + name + "/"] = "";
        add(*inner, path + name + "/", lost, kept, tree);
      } else {
        const size_t since = inner->bytes.size() - inner->synced.size();
        const auto some = static_cast<size_t>(kept * static_cast<double>(since));
        tree[path + name] = inner->bytes.substr(0, inner->synced.size() + some);
      }
    }
  }

  std::shared_ptr<Item> root_ = std::make_shared<Item>();
};

}  // namespace

Interruptions::Interruptions() {
  std::fill(std::begin(calls), std::end(calls), 0);
  interrupting = this;
}
Interruptions::~Interruptions() { interrupting = nullptr; }

int64_t Interruptions::count(Call call) const { return (calls[call] + 1) / 2; }

DiskRecord::DiskRecord(const std::string& root)
    : root_(std::filesystem::canonical(root).string() + "/") {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
    const std::string path = entry.path().string().substr(root_.size());
    before_[entry.is_directory() ? path + "/" : path] =
        entry.is_directory() ? "" : read_bytes(entry.path().string());
  }
  recording = this;
}
DiskRecord::~DiskRecord() { recording = nullptr; }

void DiskRecord::add(Event event) {
  for (std::string* path : {&event.path, &event.to}) {
    *path = std::filesystem::path(*path).lexically_normal().string();
  }
  if (event.path + "/" == root_) event.path = root_;
  if (!event.path.starts_with(root_)) return;
  event.path.erase(0, root_.size());
  if (!event.to.empty()) event.to.erase(0, root_.size());
  events_.push_back(std::move(event));
}

void DiskRecord::replay(const std::vector<size_t>& since,
                        const std::function<void(size_t, const Tree&)>& check) const {
  Disk disk(before_);
  std::set<Tree> seen;
  for (size_t n = 0; n <= events_.size(); ++n) {
    if (n > 0) disk.apply(events_[n - 1]);
    if (std::find(since.begin(), since.end(), n) != since.end()) seen.clear();
    const std::vector<const Item*> folders = disk.unsynced();
    ASSERT_LE(folders.size(), 6u);
    for (size_t choice = 0; choice < size_t{1} << folders.size(); ++choice) {
      std::set<const Item*> lost;
      for (size_t i = 0; i < folders.size(); ++i) {
        if (choice >> i & 1) lost.insert(folders[i]);
      }
      for (const double kept : {0.0, 0.5, 1.0}) {
        const Tree tree = disk.left(lost, kept);
        if (seen.insert(tree).second) check(n, tree);
      }
    }
  }
}

void make_tree(const std::string& folder, const DiskRecord::Tree& tree) {
  for (const auto& [path, bytes] : tree) {
    if (path.ends_with('/')) {
      std::filesystem::create_directory(folder + "/" + path);
    } else {
      write_bytes(folder + "/" + path, bytes);
    }
  }
}

}  // namespace longspan::test

// The system calls. These definitions take precedence over the C library's.
using longspan::test::Interruptions;
using longspan::test::note;
using longspan::test::path_of;
using Kind = longspan::test::DiskRecord::Kind;

extern "C" {

int open(const char* path, int flags, ...) {
  if (longspan::test::interrupted(Interruptions::open)) return -1;
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  const auto file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  note(file >= 0 && (flags & O_CREAT) != 0, Kind::file, path);
  return file;
}

ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  if (longspan::test::interrupted(Interruptions::pread)) return -1;
  return syscall(SYS_pread64, file, to, bytes, offset);
}

ssize_t write(int file, const void* from, size_t bytes) {
  if (longspan::test::interrupted(Interruptions::write)) return -1;
  const ssize_t n = syscall(SYS_write, file, from, bytes);
  if (longspan::test::recording != nullptr && n > 0) {
    note(true, Kind::write, path_of(file), {},
         std::string(static_cast<const char*>(from), static_cast<size_t>(n)));
  }
  return n;
}

int fsync(int file) {
  if (longspan::test::interrupted(Interruptions::fsync)) return -1;
  const auto result = static_cast<int>(syscall(SYS_fsync, file));
  if (longspan::test::recording != nullptr) note(result == 0, Kind::sync, path_of(file));
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  const auto result = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  note(result == 0, Kind::folder, path);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  const auto result = static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  note(result == 0, Kind::rename, from, to);
  return result;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  const auto result =
      static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  note(result == 0, (flags & RENAME_EXCHANGE) != 0 ? Kind::exchange : Kind::rename, from, to);
  return result;
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  std::string whole = path;
  if (longspan::test::recording != nullptr && folder != AT_FDCWD) {
    whole = path_of(folder) + "/" + path;
  }
  const auto result = static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
  note(result == 0, Kind::remove, whole);
  return result;
}

int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  const int result = unlink(path);
  return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

}  // extern "C"
