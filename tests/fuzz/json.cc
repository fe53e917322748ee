// Any bytes as JSON are read, or refused with a ValueError. A readable value is written and read
// again.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "data/io/json.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Json value;
  try {
    value = parse_json({reinterpret_cast<const char*>(data), size});
  } catch (const ValueError&) {
    return 0;
  }
  // Integers beyond 64 bits are read as floating-point numbers, and these must survive the round
  // trip.
  const std::string text = to_string(value);
  if (to_string(parse_json(text)) != text) std::abort();
  return 0;
}
