// Any lines as arguments are applied, or refused with a ValueError or IoError.

#include "tests/fuzz/config.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> arguments{"program"};
  if (size > 0) arguments.emplace_back();
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      arguments.emplace_back();
    } else if (data[i] != 0) {
      arguments.back() += static_cast<char>(data[i]);
    }
  }
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());

  FuzzConfig config;
  std::vector<Flag> flags = flags_of(to_json(config));
  flags.push_back({"--out", "", "a flag without a key"});
  Settings settings;
  try {
    const CommandLine line =
        parse_command_line(static_cast<int>(argv.size()), argv.data(), flags, "about");
    require_no_others(line);
    settings = line.settings;
  } catch (const ValueError&) {
    return 0;
  } catch (const IoError&) {
    return 0;
  }
  check_settings(settings);
  return 0;
}
