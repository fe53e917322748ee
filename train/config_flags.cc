#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <sstream>
#include <unordered_map>

#include "core/error.h"
#include "nn/nearest.h"
#include "train/config.h"

namespace longspan {
namespace {

constexpr size_t text_column = 30;  // where texts of --help begin

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Returns "--save-every,--save_every" for "--save-every".
std::string both_spellings(const std::string& name) {
  std::string low = name, dash = name;
  for (size_t i = 2; i < name.size(); ++i) {
    if (name[i] == '-') low[i] = '_';
    if (name[i] == '_') dash[i] = '-';
  }
  return low == dash ? name : dash + "," + low;
}

/// Returns what whoever typed an unknown option may have meant, as the end of a sentence: a flag
/// that others call so, a key of that name, or the flag or key with the nearest name.
std::string meant(const std::string& option, std::span<const Flag> flags,
                  std::span<const Key> keys) {
  std::string low = option.substr(option.find_first_not_of('-') % option.size());
  std::replace(low.begin(), low.end(), '-', '_');
  const auto of_key = [](const std::string& key) {
    return fmt::format(": it is a key; did you mean --set {}=VALUE?", key);
  };
  std::vector<std::string> names{"--config", "--set", "--help"}, others;
  for (const Flag& flag : flags) {
    names.push_back(flag.name);
    for (const std::string& word : split_words(flag.also)) {
      if (word == low) return fmt::format(": did you mean \"{}\"?", flag.name);
    }
  }
  for (const Key& key : keys) {
    if (low == key.name || low == key.name.substr(key.name.rfind('.') + 1)) return of_key(key.name);
    others.push_back(key.name);
  }
  if (const std::string near = nearest(option, names); !near.empty()) {
    return fmt::format(": did you mean \"{}\"?", near);
  }
  const std::string near = nearest(low, others);
  return near.empty() ? "" : fmt::format(": did you mean --set {}=VALUE?", near);
}

/// Returns the arguments that belong to no flag. Throws ValueError if one looks like an option.
std::vector<std::string> without_options(const std::vector<std::string>& arguments,
                                         std::span<const Flag> flags, std::span<const Key> keys) {
  std::vector<std::string> others;
  for (const std::string& other : arguments) {
    if (other.size() > 1 && other[0] == '-' && other != "--") {
      const std::string name = other.substr(0, other.find('='));
      fail("command line", "unknown option \"{}\"{}; see --help", name, meant(name, flags, keys));
    }
    if (other != "--") others.push_back(other);
  }
  return others;
}

/// Returns the end of the text of --help: the keys that no flag sets.
std::string help_of_keys(std::span<const Flag> flags, std::span<const Key> keys) {
  std::string text;
  for (const Key& key : keys) {
    const bool set = std::any_of(flags.begin(), flags.end(),
                                 [&](const Flag& flag) { return flag.key == key.name; });
    if (set) continue;
    const std::string left =
        fmt::format("{} [{}]", key.name, key.value.empty() ? "none" : key.value);
    text += left.size() < text_column - 3
                ? fmt::format("  {:<{}} {}\n", left, text_column - 3, key.meaning)
                : fmt::format("  {}\n{:{}}{}\n", left, "", text_column, key.meaning);
  }
  return text.empty() ? "" : "Keys of --set and of files, with their defaults:\n" + text;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv, std::span<const Flag> flags,
                               const std::string& about, std::span<const Key> keys) {
  CLI::App app(about, argc > 0 ? argv[0] : "longspan");
  app.set_help_flag();
  app.allow_extras();
  bool help = false;
  app.add_flag("-h,--help", help, "print this text");

  std::vector<std::string> given;  // CLI11 needs a target; values come from results()
  const auto add = [&](const std::string& names, const std::string& text) {
    return app.add_option(names, given, text)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->option_text("VALUE");
  };
  const CLI::Option* config =
      add("--config", "a TOML file with fields; options of the command line go before it");
  const CLI::Option* set = add("--set", "KEY=VALUE, a field by its dotted name");
  std::unordered_map<const CLI::Option*, const Flag*> flag_of;
  std::vector<std::string> switched;
  for (const Flag& flag : flags) {
    CLI::Option* option = flag.is_switch
                              ? app.add_flag(both_spellings(flag.name), switched, flag.help)
                                    ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                              : add(both_spellings(flag.name), flag.help);
    if (flag.hidden) option->group("");
    flag_of[option] = &flag;
  }

  CommandLine line;
  try {
    // CLI11 expects the arguments in reverse order.
    std::vector<std::string> arguments;
    for (int i = argc - 1; i > 0; --i) arguments.emplace_back(argv[i]);
    app.parse(std::move(arguments));
  } catch (const CLI::Error& error) {
    fail("command line", "{}; see --help", error.what());
  }
  if (help) {
    line.help = app.help() + help_of_keys(flags, keys);
    return line;
  }

  std::unordered_map<const CLI::Option*, size_t> seen;
  std::string file;
  Settings settings;
  for (const CLI::Option* option : app.parse_order()) {
    const auto place = flag_of.find(option);
    if (option != config && option != set && place == flag_of.end()) continue;
    const std::string& value = option->results().at(seen[option]++);
    require(value.rfind("--", 0) != 0 || app.get_option_no_throw(value) == nullptr, "command line",
            "{} needs a value and got the option {}; see --help", option->get_name(), value);
    if (option == config) {
      file = value;
    } else if (option == set) {
      settings.push_back(parse_setting(value, "--set"));
    } else {
      const Flag& flag = *place->second;
      require(!flag.is_switch || value == "true" || value == "false", "command line",
              "{} is \"{}\": expected nothing, true or false", flag.name, value);
      if (flag.key.empty()) {
        line.values.push_back({flag.name, value, flag.name, true});
      } else {
        settings.push_back({flag.key, value, flag.name, true});
      }
    }
  }
  line.others = without_options(app.remaining(), flags, keys);
  if (!file.empty()) line.settings = read_toml(file);
  line.settings.insert(line.settings.end(), settings.begin(), settings.end());
  return line;
}

}  // namespace longspan
