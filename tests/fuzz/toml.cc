// Any bytes as a configuration file are applied, or refused with a ValueError.

#include <string_view>

#include "tests/fuzz/config.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Settings settings;
  try {
    settings = parse_toml({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const ValueError&) {
    return 0;
  }
  check_settings(settings);
  return 0;
}
