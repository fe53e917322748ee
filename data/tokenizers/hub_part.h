#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/io/json.h"

namespace longspan {

namespace detail {
/// Names the reader of tokenizers in its errors.
inline constexpr const char* tokenizer_op = "tokenizer";
/// Levels of components within components that are read.
inline constexpr int deepest_component = 8;
}  // namespace detail

/// Returns the path of the only file of a folder whose name ends so; empty if there is none, or
/// more than one.
std::string only_file(const std::string& folder, std::string_view ending);

/// Collects everything that a file of a hub folder is refused for, so that one error lists it all.
class HubIssues {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    all_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool empty() const { return all_.empty(); }
  /// Throws IoError with every issue and the name of the file, if there are any.
  void raise(std::string_view file) const;

 private:
  std::vector<std::string> all_;
};

/// One component of a tokenizer.json: an object whose members are read by name. Members of another
/// kind, and those that nobody has read, are issues.
class HubPart {
 public:
  /// `path` names the component in messages, such as "normalizer". Not an object: an issue.
  HubPart(const Json& json, std::string path, HubIssues& issues);

  const std::string& path() const { return path_; }
  /// Its type; "" if it has none.
  std::string type();
  bool flag(const char* name, bool otherwise);
  std::string text(const char* name, std::string_view otherwise);
  /// A number from `least` to 2^31 - 1.
  int64_t integer(const char* name, int64_t otherwise, int64_t least = 0);
  /// Returns the member, or null if it is absent or null.
  const Json* find(const char* name);
  /// The elements of an array; none if it is absent.
  std::vector<Json> list(const char* name);
  /// Adds an issue that names a member.
  void refuse(const char* name, std::string_view why);
  /// Adds issues for members that nobody has read.
  void finish();
  HubIssues& issues() { return issues_; }

 private:
  const Json& json_;
  std::string path_;
  HubIssues& issues_;
  std::set<std::string, std::less<>> read_;
};

/// Returns the text of a token: a string, or the member "content" of an object.
std::string content_of(const Json& token);
/// Returns at most 60 bytes of a value as it is written in JSON, for messages.
std::string shown(const Json& value);

}  // namespace longspan
