#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace longspan {

/// A file descriptor that closes itself.
class File {
 public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File();
  File(File&& other) noexcept : descriptor_(other.release()) {}
  File& operator=(File&& other) noexcept;

  int get() const { return descriptor_; }
  int release();
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

/// "No space left on device (ENOSPC)", for a message, and what to do where that is not plain; errno
/// by default.
std::string error_text();
std::string error_text(int number);

/// Makes a write beyond the limit on the size of files (ulimit -f) an error of its own, EFBIG,
/// where the system's way is to end the process by SIGXFSZ. Leaves a handler alone that somebody
/// has set.
void ignore_file_size_signal();

/// open(2), once more where a signal interrupts it. False, with errno, where it fails.
File open_file(const std::string& path, int flags, unsigned mode = 0);
/// Opens for reading. Throws IoError where the file is missing, is a directory or is unreadable.
File open_to_read(const std::string& path, std::string_view op);
/// What lies at a path, by way of symbolic links.
enum class PathKind : uint8_t { nothing, file, folder, other };
/// Throws IoError where that cannot be found out: links that lead in a circle, a folder above that
/// may not be read.
PathKind kind_of_path(const std::string& path, std::string_view op);

/// Bytes of an open file.
int64_t size_of_file(const File& file, const std::string& path, std::string_view op);
/// Reads exactly `bytes` from `offset`. Throws IoError, also where the file ends before.
void read_exactly(const File& file, const std::string& path, std::string_view op, int64_t offset,
                  void* to, int64_t bytes);
/// A whole file of at most `limit` bytes. Throws IoError.
std::string read_file(const std::string& path, std::string_view op, int64_t limit = 64 << 20);

/// Writes all of it or throws IoError, which names the path and the space that is left.
void write_exactly(const File& file, const std::string& path, std::string_view op, const void* from,
                   int64_t bytes);
/// Waits until the file (or folder) is on the disk. Throws IoError.
void sync(const File& file, const std::string& path, std::string_view op);
void sync_folder(const std::string& path, std::string_view op);

/// Creates the folder and those above it, and brings the new names to the disk. Throws IoError.
void make_folders(const std::string& path, std::string_view op);
/// Removes a file or a whole folder; what is not there is no error. Returns false where it could
/// not.
bool remove_all(const std::string& path) noexcept;

/// Replaces a file by `text`, or leaves it as it was: written beside it under a temporary name,
/// synced, renamed. Throws IoError.
void replace_file(const std::string& path, std::string_view text, std::string_view op);

/// Something that is being written under a name of is_temporary_name(). The writer holds a lock on
/// it, so that sweep() removes only what a dead writer left. Unless committed it goes on
/// destruction.
class Temporary {
 public:
  enum Kind { file, folder };
  /// Creates it in an existing folder. Throws IoError.
  Temporary(Kind kind, const std::string& in, std::string_view op);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  const std::string& path() const { return path_; }
  const File& handle() const { return handle_; }
  /// Syncs it, renames it to `path` and syncs the folder above. A file there is replaced; of a
  /// folder there the contents are exchanged, in one step where the file system can do so.
  void commit(const std::string& path);

 private:
  void exchange(const std::string& path);

  std::string in_, path_, op_;
  File handle_;
};

/// Whether a Temporary has such a name: ".tmp-longspan-PID-TIME-COUNT". Those of other programs,
/// such as ".tmp-rsync-partial", are not.
bool is_temporary_name(std::string_view name) noexcept;

/// Removes from a folder what writers left that died: names of is_temporary_name() that are not
/// locked. A folder that is not there is none to sweep. Returns how many were removed.
int sweep(const std::string& folder) noexcept;

/// Keeps out other writers that ask for the same lock, for as long as it or its process lives.
/// Creates the folder and leaves nothing in it. Throws IoError where another holds it.
class FolderLock {
 public:
  FolderLock(const std::string& folder, std::string_view op);

 private:
  File file_;
};

}  // namespace longspan
