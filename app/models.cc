#include "models/registry.h"

#include <fmt/format.h>

#include <cstdio>

#include "app/commands.h"
#include "core/error.h"

namespace longspan {
namespace {

std::string amount(int64_t n) {
  if (n < 10'000) return fmt::format("{}", n);
  return n < 1'000'000 ? fmt::format("{:.0f} K", static_cast<double>(n) / 1e3)
                       : fmt::format("{:.1f} M", static_cast<double>(n) / 1e6);
}

}  // namespace

int models_command(int argc, const char* const* argv) {
  const CommandLine line = parse_command_line(
      argc, argv, {},
      "longspan models [NAME]: every model and preset, or the configuration of one.");
  if (!line.help.empty()) print_help(line.help);
  require(line.others.size() <= 1, "models", "\"{}\" belongs to nothing; give one name",
          line.others.size() > 1 ? line.others[1] : "");
  if (line.others.size() == 1) {
    const std::unique_ptr<ModelSpec> model = find_model(line.others[0]);
    std::fputs(to_toml(to_json(*model)).c_str(), stdout);
    return 0;
  }
  for (const ModelEntry& entry : models()) {
    std::puts(fmt::format("{}  {}", entry.name, entry.description).c_str());
    for (const Preset& preset : entry.presets) {
      const std::string name = &preset == entry.presets.data()
                                   ? std::string(entry.name)
                                   : fmt::format("{}:{}", entry.name, preset.name);
      std::puts(fmt::format("  {:<36} {:>9} parameters  {}", name,
                            amount(entry.make(preset.name)->parameters()), preset.description)
                    .c_str());
    }
  }
  return 0;
}

}  // namespace longspan
