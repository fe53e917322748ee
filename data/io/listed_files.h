#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Returns the split that the name of a file says by how it begins, with anything but a letter
/// after it: 0 for train, 1 for valid, validation, val, dev and eval, 2 for test; nothing if it
/// says none.
std::optional<int> split_in_name(std::string_view path);

/// Returns the entries of a folder, sorted by name. Throws IoError.
std::vector<std::string> list_folder(const std::string& folder);

/// Returns the files of a folder and of those in it, sorted by path, but for those whose names
/// begin with a dot. Throws IoError.
std::vector<std::string> list_files(const std::string& folder);

/// Returns the paths of a list that commas separate; a path that is there is one with its commas.
std::vector<std::string> listed_paths(const std::string& list);

}  // namespace longspan
