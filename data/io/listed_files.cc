#include "data/io/listed_files.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/io/files.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
constexpr const char* kData = "data";

}  // namespace

std::optional<int> split_in_name(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto end = std::find_if_not(name.begin(), name.end(), is_letter);
  const std::string_view word = name.substr(0, static_cast<size_t>(end - name.begin()));
  if (word == "train") return 0;
  if (word == "test") return 2;
  for (const char* valid : {"valid", "validation", "val", "dev", "eval"}) {
    if (word == valid) return 1;
  }
  return std::nullopt;
}

std::vector<std::string> list_folder(const std::string& folder) {
  std::vector<std::string> all;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    all.push_back(entry->path().string());
  }
  require<IoError>(!error, kData, "cannot list {}: {}", folder, error.message());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::string> list_files(const std::string& folder) {
  std::vector<std::string> all;
  for (const std::string& path : list_folder(folder)) {
    if (fs::path(path).filename().string().starts_with('.')) continue;
    if (kind_of_path(path, kData) == PathKind::file) {
      all.push_back(path);
    } else if (kind_of_path(path, kData) == PathKind::folder && !fs::is_symlink(path)) {
      const std::vector<std::string> more = list_files(path);
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  return all;
}

std::vector<std::string> listed_paths(const std::string& list) {
  if (list.find(',') == std::string::npos || kind_of_path(list, kData) != PathKind::nothing) {
    return {list};
  }
  std::vector<std::string> all;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) all.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

}  // namespace longspan
