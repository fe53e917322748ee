#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace longspan {

class Json;

/// Reads a file of at most `limit` bytes that has one JSON object. Throws IoError that names it.
Json read_json_object(const std::string& path, std::string_view op, int64_t limit = 64 << 20);

/// Receives the members of an object one by one.
using TakeMember = std::function<void(std::string name, Json value)>;
/// Parses an object as parse_json() does (data/io/json.h), but keeps none of its members: each goes
/// to `take` when it is complete. Instead of the member `inner`, if that is an object, its members
/// go to `take_inner`. Throws ValueError as parse_json() does, but for repeated names of these
/// members, which it does not notice, and if the text is no object.
void parse_members(std::string_view text, int max_depth, const TakeMember& take,
                   std::string_view inner, const TakeMember& take_inner);

}  // namespace longspan
