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

/// Returns text such as "No space left on device (ENOSPC)" for a message, with advice if the cause
/// is not obvious; `number` defaults to errno.
std::string error_text();
std::string error_text(int number);

/// Makes a write beyond the file size limit (ulimit -f) fail with EFBIG, instead of ending the
/// process by SIGXFSZ. Keeps a handler that is already set.
void ignore_file_size_signal();

/// Calls open(2), again if a signal interrupts it. The result is false, with errno set, on failure.
File open_file(const std::string& path, int flags, unsigned mode = 0);
/// Opens for reading. Throws IoError if the file is missing, is a directory or is unreadable.
File open_to_read(const std::string& path, std::string_view op);
/// The kind of object at a path; symbolic links are followed.
enum class PathKind : uint8_t { nothing, file, folder, other };
/// Throws IoError if the kind cannot be determined: a cycle of links, or a parent folder without
/// permission.
PathKind kind_of_path(const std::string& path, std::string_view op);

/// Returns the size of an open file in bytes.
int64_t size_of_file(const File& file, const std::string& path, std::string_view op);
/// Reads exactly `bytes` from `offset`. Throws IoError, also if the file ends earlier.
void read_exactly(const File& file, const std::string& path, std::string_view op, int64_t offset,
                  void* to, int64_t bytes);
/// Returns a text without the byte order mark (EF BB BF) that some programs put before UTF-8.
std::string_view without_byte_order_mark(std::string_view text);
/// Reads a whole file of at most `limit` bytes. Throws IoError.
std::string read_file(const std::string& path, std::string_view op, int64_t limit = 64 << 20);

/// Writes all bytes, or throws IoError that names the path and the free space.
void write_exactly(const File& file, const std::string& path, std::string_view op, const void* from,
                   int64_t bytes);
/// Waits until the file (or folder) is on the disk. Throws IoError.
void sync(const File& file, const std::string& path, std::string_view op);
void sync_folder(const std::string& path, std::string_view op);

/// Creates the folder and its parents, and syncs the new entries to disk. Throws IoError.
void make_folders(const std::string& path, std::string_view op);
/// Removes a file or a whole folder; a missing path is no error. Returns false on failure.
bool remove_all(const std::string& path) noexcept;

/// Replaces a file atomically: `text` is written to a temporary file beside it, synced and renamed.
/// On failure the old file is unchanged. Throws IoError.
void replace_file(const std::string& path, std::string_view text, std::string_view op);

/// A file or folder being written under a name for which is_temporary_name() holds. The writer
/// locks it, so that sweep() removes only the leftovers of dead processes. The destructor removes
/// it unless it was committed.
class Temporary {
 public:
  enum Kind { file, folder };
  /// Creates it in the existing folder `in`. Throws IoError.
  Temporary(Kind kind, const std::string& in, std::string_view op);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  const std::string& path() const { return path_; }
  const File& handle() const { return handle_; }
  /// Syncs it, renames it to `path` and syncs the parent folder. An existing file is replaced; an
  /// existing folder is exchanged, atomically if the file system supports it.
  void commit(const std::string& path);

 private:
  void exchange(const std::string& path);

  std::string in_, path_, op_;
  File handle_;
};

/// Whether a name is one of Temporary: ".tmp-longspan-PID-TIME-COUNT". Temporary names of other
/// programs, such as ".tmp-rsync-partial", do not match.
bool is_temporary_name(std::string_view name) noexcept;

/// Removes leftovers of dead writers from a folder: unlocked entries for which is_temporary_name()
/// holds. A missing folder is no error. Returns the number of removed entries.
int sweep(const std::string& folder) noexcept;

/// Excludes other holders of the same lock until it is destroyed or its process ends. Creates the
/// folder and leaves nothing in it. Throws IoError if another process holds the lock.
class FolderLock {
 public:
  FolderLock(const std::string& folder, std::string_view op);

 private:
  File file_;
};

}  // namespace longspan
