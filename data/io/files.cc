#include "data/io/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/error.h"

namespace longspan {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string space_left(const std::string& path) {
  struct statvfs fs;
  if (statvfs(folder_of(path).c_str(), &fs) != 0) return "unknown";
  return fmt::format("{} bytes", static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize);
}

/// Repeats a system call until no signal interrupts it, and returns its result.
template <class F>
auto uninterrupted(F&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

constexpr std::string_view temporary_prefix = ".tmp-longspan-";

/// Removes the digits at the beginning of `text`; returns false if there are none.
bool take_digits(std::string_view& text, std::string_view digits) {
  const size_t count = std::min(text.find_first_not_of(digits), text.size());
  text.remove_prefix(count);
  return count > 0;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

int File::release() { return std::exchange(descriptor_, -1); }

std::string error_text() { return error_text(errno); }

std::string error_text(int number) {
  const char* name = strerrorname_np(number);
  const char* text = strerrordesc_np(number);
  if (name == nullptr || text == nullptr) return fmt::format("error {}", number);
  const char* remedy =
      number == ELOOP ? ": they lead in a circle; give the file or folder itself" : "";
  return fmt::format("{} ({}){}", text, name, remedy);
}

void ignore_file_size_signal() {
  struct sigaction now {};
  if (sigaction(SIGXFSZ, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
      now.sa_handler == SIG_DFL) {
    signal(SIGXFSZ, SIG_IGN);
  }
}

File open_file(const std::string& path, int flags, unsigned mode) {
  return File(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); }));
}

PathKind kind_of_path(const std::string& path, std::string_view op) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    require<IoError>(errno == ENOENT || errno == ENOTDIR, op, "cannot look at {}: {}", path,
                     error_text());
    return PathKind::nothing;
  }
  return S_ISREG(status.st_mode)   ? PathKind::file
         : S_ISDIR(status.st_mode) ? PathKind::folder
                                   : PathKind::other;
}

File open_to_read(const std::string& path, std::string_view op) {
  File file = open_file(path, O_RDONLY | O_NONBLOCK);
  require<IoError>(static_cast<bool>(file), op, "cannot open {}: {}", path, error_text());
  struct stat status;
  require<IoError>(fstat(file.get(), &status) == 0, op, "cannot look at {}: {}", path,
                   error_text());
  require<IoError>(S_ISREG(status.st_mode), op, "{} is {}, not a file", path,
                   S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe");
  return file;
}

int64_t size_of_file(const File& file, const std::string& path, std::string_view op) {
  struct stat status;
  require<IoError>(fstat(file.get(), &status) == 0, op, "cannot look at {}: {}", path,
                   error_text());
  return status.st_size;
}

void read_exactly(const File& file, const std::string& path, std::string_view op, int64_t offset,
                  void* to, int64_t bytes) {
  auto* next = static_cast<char*>(to);
  for (int64_t left = bytes; left > 0;) {
    const auto most = static_cast<size_t>(std::min(left, int64_t{1} << 30));
    const ssize_t n = uninterrupted([&] { return pread(file.get(), next, most, offset); });
    require<IoError>(n >= 0, op, "cannot read {}: {}", path, error_text());
    require<IoError>(n > 0, op, "{} ends at byte {}, {} before what it promises", path, offset,
                     left);
    next += n;
    offset += n;
    left -= n;
  }
}

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  return text.starts_with(mark) ? text.substr(mark.size()) : text;
}

std::string read_file(const std::string& path, std::string_view op, int64_t limit) {
  const File file = open_to_read(path, op);
  const int64_t bytes = size_of_file(file, path, op);
  require<IoError>(bytes <= limit, op, "{} has {} bytes, more than the {} expected at most", path,
                   bytes, limit);
  std::string text(static_cast<size_t>(bytes), '\0');
  read_exactly(file, path, op, 0, text.data(), bytes);
  return text;
}

void write_exactly(const File& file, const std::string& path, std::string_view op, const void* from,
                   int64_t bytes) {
  [[maybe_unused]] static const bool once = (ignore_file_size_signal(), true);
  const auto* next = static_cast<const char*>(from);
  for (int64_t left = bytes; left > 0;) {
    const auto most = static_cast<size_t>(std::min(left, int64_t{1} << 30));
    const ssize_t n = uninterrupted([&] { return ::write(file.get(), next, most); });
    if (n < 0) {
      const std::string reason = error_text();
      fail<IoError>(op, "cannot write {}: {}; {} more needed, {} free", path, reason, left,
                    space_left(path));
    }
    next += n;
    left -= n;
  }
}

void sync(const File& file, const std::string& path, std::string_view op) {
  const int result = uninterrupted([&] { return fsync(file.get()); });
  require<IoError>(result == 0, op, "cannot bring {} to the disk: {}", path, error_text());
}

void sync_folder(const std::string& path, std::string_view op) {
  const File folder = open_file(path, O_RDONLY | O_DIRECTORY);
  require<IoError>(static_cast<bool>(folder), op, "cannot open {}: {}", path, error_text());
  sync(folder, path, op);
}

void make_folders(const std::string& path, std::string_view op) {
  std::error_code error;
  std::vector<std::string> above;  // parents of the new folders
  for (std::string p = path; !std::filesystem::exists(p, error) && p != folder_of(p);) {
    above.push_back(p = folder_of(p));
  }
  error.clear();
  std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path, error)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  require<IoError>(!error, op, "cannot create the folder {}: {}", path, error_text(error.value()));
  for (const std::string& folder : above) sync_folder(folder, op);
}

// Avoids the std::filesystem functions that iterate over folders, which terminate the process when
// out of memory.
bool remove_all(const std::string& path) noexcept {
  const auto remove_one = [](const char* name, const struct stat*, int, struct FTW*) {
    return ::remove(name);
  };
  constexpr int open_folders = 16;
  return nftw(path.c_str(), remove_one, open_folders, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT;
}

void replace_file(const std::string& path, std::string_view text, std::string_view op) {
  Temporary temporary(Temporary::file, folder_of(path), op);
  write_exactly(temporary.handle(), temporary.path(), op, text.data(),
                static_cast<int64_t>(text.size()));
  temporary.commit(path);
}

Temporary::Temporary(Kind kind, const std::string& in, std::string_view op) : in_(in), op_(op) {
  static std::atomic<unsigned> count{0};
  // A sweeper may remove the file after it is created and before it is locked. Then it is created
  // again.
  constexpr int attempts = 16;
  std::string reason;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    path_ = fmt::format("{}/{}{}-{:x}-{}", in, temporary_prefix, getpid(), now, count.fetch_add(1));
    if (kind == folder) {
      require<IoError>(::mkdir(path_.c_str(), 0777) == 0, op, "cannot create a folder in {}: {}",
                       in, error_text());
      handle_ = open_file(path_, O_RDONLY | O_DIRECTORY);
    } else {
      handle_ = open_file(path_, O_WRONLY | O_CREAT | O_EXCL, 0666);
      require<IoError>(static_cast<bool>(handle_), op, "cannot create a file in {}: {}", in,
                       error_text());
    }
    struct stat status;
    if (handle_ && flock(handle_.get(), LOCK_EX | LOCK_NB) == 0 &&
        fstat(handle_.get(), &status) == 0 && status.st_nlink > 0) {
      return;
    }
    reason = error_text();
    ::remove(path_.c_str());  // still empty
  }
  fail<IoError>(op, "cannot lock what is written in {}: {}", in, reason);
}

Temporary::~Temporary() {
  if (!path_.empty()) remove_all(path_);
}

void Temporary::commit(const std::string& path) {
  sync(handle_, path_, op_);
  if (::rename(path_.c_str(), path.c_str()) == 0) {
    path_.clear();
  } else if (errno == ENOTEMPTY || errno == EEXIST) {
    exchange(path);
  } else {
    fail<IoError>(op_, "cannot rename {} to {}: {}", path_, path, error_text());
  }
  sync_folder(in_, op_);
}

void Temporary::exchange(const std::string& path) {
  // The old content of `path` gets the temporary name, and is removed with this object.
  if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  const std::string old = path_ + "-old";
  require<IoError>(::rename(path.c_str(), old.c_str()) == 0, op_, "cannot replace {}: {}", path,
                   error_text());
  if (::rename(path_.c_str(), path.c_str()) != 0) {
    const std::string reason = error_text();
    ::rename(old.c_str(), path.c_str());
    fail<IoError>(op_, "cannot replace {}: {}", path, reason);
  }
  path_ = old;
}

bool is_temporary_name(std::string_view name) noexcept {
  constexpr std::string_view decimal = "0123456789", hexadecimal = "0123456789abcdef";
  return take(name, temporary_prefix) && take_digits(name, decimal) && take(name, "-") &&
         take_digits(name, hexadecimal) && take(name, "-") && take_digits(name, decimal) &&
         (name.empty() || name == "-old");
}

int sweep(const std::string& folder) noexcept try {
  int removed = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
    if (!is_temporary_name(entry->d_name)) continue;
    const std::string path = folder + "/" + entry->d_name;
    const File file = open_file(path, O_RDONLY | O_NOFOLLOW);
    if (file && flock(file.get(), LOCK_EX | LOCK_NB) == 0 && remove_all(path)) ++removed;
  }
  return removed;
} catch (const std::bad_alloc&) {  // the next call continues
  return 0;
}

FolderLock::FolderLock(const std::string& folder, std::string_view op) {
  make_folders(folder, op);
  file_ = open_file(folder, O_RDONLY | O_DIRECTORY);
  require<IoError>(static_cast<bool>(file_), op, "cannot open {}: {}", folder, error_text());
  if (flock(file_.get(), LOCK_EX | LOCK_NB) == 0) return;
  require<IoError>(errno == EWOULDBLOCK, op, "cannot lock {}: {}", folder, error_text());
  fail<IoError>(op, "another process is writing to {}: wait for it or choose another folder",
                folder);
}

}  // namespace longspan
