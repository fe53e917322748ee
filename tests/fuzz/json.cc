// Any bytes as JSON: read, or refused with a ValueError. What can be read is written and read
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
  // Whole numbers beyond 64 bits and the like come back as the number that they were read as.
  const std::string text = to_string(value);
  if (to_string(parse_json(text)) != text) std::abort();
  return 0;
}
