#include "data/tokenizers/hub_part.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/unicode/unicode.h"

namespace longspan {

std::string only_file(const std::string& folder, std::string_view ending) {
  std::string found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!path.ends_with(ending)) continue;
    if (!found.empty()) return {};
    found = path;
  }
  return found;
}
namespace {

constexpr size_t most_issues = 20;

/// Writes control characters so that a message can be shown on a terminal.
std::string visible(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string content_of(const Json& token) {
  if (token.is_string()) return token.string();
  const Json* content = token.find("content");
  return content != nullptr && content->is_string() ? content->string() : "";
}

std::string shown(const Json& value) {
  std::string text;
  if (value.is_array() || value.is_object()) {
    text = std::string(value.kind());
  } else {
    text = to_string(value);
  }
  constexpr size_t most = 60;
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

void HubIssues::raise(std::string_view file) const {
  if (all_.empty()) return;
  std::string text;
  for (size_t i = 0; i < std::min(all_.size(), most_issues); ++i) {
    text += "\n  " + visible(std::string_view(all_[i]).substr(0, 600));
  }
  if (all_.size() > most_issues) text += fmt::format("\n  and {} more", all_.size() - most_issues);
  fail<IoError>("tokenizer", "{} is refused:{}", visible(file), text);
}

HubPart::HubPart(const Json& json, std::string path, HubIssues& issues)
    : json_(json), path_(std::move(path)), issues_(issues) {
  if (!json.is_object()) issues_.add("{} is {}; expected an object", path_, shown(json));
}

const Json* HubPart::find(const char* name) {
  read_.insert(name);
  const Json* value = json_.find(name);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

void HubPart::refuse(const char* name, std::string_view why) {
  const Json* value = find(name);
  issues_.add("{}.{} is {}; {}", path_, name, value == nullptr ? "absent" : shown(*value), why);
}

std::string HubPart::type() { return text("type", ""); }

bool HubPart::flag(const char* name, bool otherwise) {
  const Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is_bool()) return value->boolean();
  refuse(name, "expected true or false");
  return otherwise;
}

std::string HubPart::text(const char* name, std::string_view otherwise) {
  const Json* value = find(name);
  if (value == nullptr) return std::string(otherwise);
  if (value->is_string()) return value->string();
  refuse(name, "expected a string");
  return std::string(otherwise);
}

int64_t HubPart::integer(const char* name, int64_t otherwise, int64_t least) {
  const Json* value = find(name);
  if (value == nullptr) return otherwise;
  const bool fits =
      value->is_integer() && value->integer() >= least && value->integer() <= INT32_MAX;
  if (fits) return value->integer();
  refuse(name, fmt::format("expected a number from {} to {}", least, INT32_MAX));
  return otherwise;
}

std::vector<Json> HubPart::list(const char* name) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (value->is_array()) return value->array();
  refuse(name, "expected an array");
  return {};
}

void HubPart::finish() {
  if (!json_.is_object()) return;
  for (const JsonMember& member : json_.object()) {
    if (read_.count(member.name) != 0) continue;
    issues_.add("{}.{} is {}; this member is not known", path_, member.name, shown(member.value));
  }
}

}  // namespace longspan
