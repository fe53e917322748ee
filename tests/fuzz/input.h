#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/kernel.h"
#include "core/memory.h"
#include "data/io/files.h"

namespace longspan {

/// A file in memory, with a path under which it can be opened.
struct MemoryFile {
  explicit MemoryFile(const char* name) : file(memfd_create(name, 0)) {
    path = "/proc/self/fd/" + std::to_string(file.get());
  }
  void set(std::string_view bytes) {
    if (ftruncate(file.get(), 0) != 0 ||
        pwrite(file.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
  }
  File file;
  std::string path;
};

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Splits an input at zero bytes into exactly `count` pieces. The last piece has the rest.
inline std::vector<std::string_view> parts_of(std::string_view input, size_t count) {
  std::vector<std::string_view> parts;
  for (size_t i = 1; i < count; ++i) {
    const size_t end = std::min(input.find('\0'), input.size());
    parts.push_back(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  parts.push_back(input);
  return parts;
}

/// Aborts unless `holds`. The fuzzer reports this as a finding.
inline void check(bool holds) {
  if (!holds) std::abort();
}

/// Checks that a message can be shown on a terminal, whatever the file holds that it is about.
inline void check_message(std::string_view message) {
  check(message.size() < 20'000);
  for (const char c : message)
    check(c == '\n' || c == '\t' || (static_cast<uint8_t>(c) >= 0x20 && c != 0x7F));
}

/// Says whether f() throws what readers throw for files that are invalid or too large.
template <class F>
bool refuses(F&& f) {
  try {
    f();
    return false;
  } catch (const IoError& e) {
    check_message(e.what());
  } catch (const ValueError& e) {
    check_message(e.what());
  } catch (const OutOfMemory& e) {
    check_message(e.what());
  }
  return true;
}

/// Prepares a target: registers the backends and limits memory to 64 MiB.
inline void prepare() {
  [[maybe_unused]] static const bool once = [] {
    register_backends();
    set_memory_limit({}, int64_t{64} << 20);
    return true;
  }();
}

}  // namespace longspan
