// longspan models and longspan tasks: what there is, and which keys it has.
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "app/commands.h"
#include "core/error.h"
#include "data/data_sets.h"
#include "models/all/registry.h"

namespace longspan {
namespace {

/// Returns a number of parameters in few digits.
std::string amount(int64_t n) {
  if (n < 10'000) return fmt::format("{}", n);
  return n < 1'000'000 ? fmt::format("{:.0f} K", static_cast<double>(n) / 1e3)
                       : fmt::format("{:.1f} M", static_cast<double>(n) / 1e6);
}

/// Says which models a kind of data is for.
std::string_view models_for(DataKind kind) {
  switch (kind) {
    case DataKind::generated_labels:
    case DataKind::promoters:
    case DataKind::profiles:
      return "encoders that answer yes or no about a sequence";
    case DataKind::generated_span:
    case DataKind::trivia:
      return "encoders that find the positions of an answer";
    case DataKind::choices:
      return "encoders that choose among candidates";
    case DataKind::generated_documents:
      return "hibert";
    case DataKind::documents:
      return "encoder-decoders, and hibert";
    case DataKind::generated_tokens:
      return "decoders";
    default:
      return "decoders predict the next token, encoders hidden ones";
  }
}

/// Returns the section of config.toml with the keys of a task alone, "" if there is none.
std::string section_of(const DataSet& set) {
  for (const SampleTaskEntry& task : sample_tasks()) {
    if (task.id == set.id) return std::string(task.section);
  }
  switch (set.kind) {
    case DataKind::promoters:
    case DataKind::profiles:
      return "profiles";
    case DataKind::trivia:
      return "questions";
    case DataKind::documents:
      return "extracts";
    default:
      return "";
  }
}

/// Prints what a task is for, and its keys.
void print_task(const DataSet& set) {
  std::string text = fmt::format("# {}: {}\n# for: {}\n", set.id, set.about, models_for(set.kind));
  if (const std::string section = section_of(set); !section.empty()) {
    RunConfig config = make_config({{"task", std::string(set.id), "longspan tasks", true}});
    const Json all = to_json(config);
    text += "\n" + to_toml(Members{{section, all[section]}}, keys_of(config));
  }
  std::fputs(text.c_str(), stdout);
}

/// Parses the command line of a command that takes nothing but a name, "" if there is none.
std::string name_given(int argc, const char* const* argv, const std::string& command,
                       const std::string& about) {
  const CommandLine line = read_own_flags(argc, argv, {}, about);
  require(line.settings.empty(), command, "takes no settings, and got {}; leave it out",
          line.settings.empty() ? "" : line.settings[0].origin);
  require(line.others.size() <= 1, command, "\"{}\" belongs to nothing; give one name",
          line.others.size() > 1 ? line.others[1] : "");
  return line.others.empty() ? "" : line.others[0];
}

}  // namespace

int models_command(int argc, const char* const* argv) {
  const std::string name = name_given(argc, argv, "models",
                                      "longspan models [NAME]: every model and preset, or the keys "
                                      "of one, with their values and meanings.");
  if (!name.empty()) {
    const std::unique_ptr<ModelSpec> model = find_model(name);
    std::fputs(to_toml(to_json(*model), keys_of(*model)).c_str(), stdout);
    return 0;
  }
  for (const ModelEntry& entry : models()) {
    std::puts(fmt::format("{}  {}", entry.name, entry.description).c_str());
    for (const Preset& preset : entry.presets) {
      const std::string whole = &preset == entry.presets.data()
                                    ? std::string(entry.name)
                                    : fmt::format("{}:{}", entry.name, preset.name);
      std::puts(fmt::format("  {:<36} {:>9} parameters  {}", whole,
                            amount(entry.make(preset.name)->parameters()), preset.description)
                    .c_str());
    }
  }
  return 0;
}

int tasks_command(int argc, const char* const* argv) {
  const std::string name = name_given(argc, argv, "tasks",
                                      "longspan tasks [NAME]: every --task, or the keys of one, "
                                      "with their values and meanings.");
  if (!name.empty()) {
    print_task(find_data_set(name));
    return 0;
  }
  for (const DataSet& set : data_sets()) {
    std::puts(fmt::format("{:<18} {}\n{:18} for: {}", set.id, set.about, "", models_for(set.kind))
                  .c_str());
  }
  return 0;
}

}  // namespace longspan
