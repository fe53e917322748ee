#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/json.h"
#include "nn/fields.h"

namespace longspan {

// A configuration is a struct with `void visit(auto& v) { v("name", field)("nested", config); }`.
// Its fields have dotted names: "name", "nested.dropout". They are set from a TOML file, then from
// the command line, and written back as TOML.

/// A value for a field, and who says so.
struct Setting {
  std::string key;     ///< "model.dropout"
  Json value;          ///< of a file; from the command line always a string
  std::string origin;  ///< "--batch" or "run.toml:12", for messages
  bool text = false;   ///< from the command line: the string is to be read as the field's type
};

/// In the order given; the last one for a key counts.
using Settings = std::vector<Setting>;

/// The last setting of a key, or null.
const Setting* last_setting(const Settings& settings, std::string_view key);

/// Reads a TOML file, at most 1 MiB. Throws IoError, ValueError with line and column.
Settings read_toml(const std::string& path);
/// The same for text; `source` names it in messages.
Settings parse_toml(std::string_view text, const std::string& source);

/// Parses "key=value". Throws ValueError where there is no key or no "=".
Setting parse_setting(std::string_view text, const std::string& origin);

/// An option of the command line.
struct Flag {
  std::string name;        ///< "--save-every"; "--save_every" is the same
  std::string key;         ///< what it sets, "save_every"; empty: only CommandLine::value() sees it
  std::string help;        ///< one line
  bool is_switch = false;  ///< takes no value; "--resume" means true, "--resume=false" false
};

/// What a command line says. "--config FILE", "--set KEY=VALUE" and "--help" are always understood.
struct CommandLine {
  Settings settings;                ///< first those of --config, then flags and --set as given
  std::vector<Setting> values;      ///< flags without a key, under their names
  std::vector<std::string> others;  ///< arguments that belong to no flag
  std::string help;                 ///< not empty where --help was given: the text to print

  /// The last value of a flag without a key, or null.
  const std::string* value(std::string_view flag) const;
};

/// Throws ValueError on an unknown flag, naming the nearest, or on a missing value; IoError where
/// the file of --config cannot be read. argv[0] is passed over.
CommandLine parse_command_line(int argc, const char* const* argv, std::span<const Flag> flags,
                               const std::string& about = {});

/// Throws ValueError where there are arguments that belong to no flag.
void require_no_others(const CommandLine& line);

/// A range for a numeric field, ends included.
struct Range {
  std::string_view key;
  double low, high;
};

/// Sets fields from settings. The functions below are its use.
class FieldSetter final : public Fields {
 public:
  explicit FieldSetter(const Settings& settings) : settings_(settings) {}
  /// Throws ValueError where a setting has met no field, with the nearest name.
  void require_all_used() const;

  void field(std::string_view name, bool& value) override;
  void field(std::string_view name, int64_t& value) override;
  void field(std::string_view name, uint64_t& value) override;
  void field(std::string_view name, float& value) override;
  void field(std::string_view name, double& value) override;
  void field(std::string_view name, std::string& value) override;
  void field(std::string_view name, std::vector<int64_t>& value) override;
  void field(std::string_view name, std::vector<std::string>& value) override;
  void choice(std::string_view name, int& index, std::span<const std::string_view> names) override;
  void written(std::string_view name, std::string& text, bool (*valid)(std::string_view),
               std::string_view expected) override;
  void enter(std::string_view name) override;
  void leave() override;

 private:
  const Setting* setting(std::string_view name);

  const Settings& settings_;
  std::string prefix_;
  std::vector<std::string> keys_, tables_;
};

/// Collects fields as a JSON object, nested as they are.
class FieldReader final : public Fields {
 public:
  FieldReader() : open_(1) {}
  Json take() { return Json(std::move(open_[0])); }

  void field(std::string_view name, bool& value) override { add(name, value); }
  void field(std::string_view name, int64_t& value) override { add(name, value); }
  void field(std::string_view name, uint64_t& value) override { add(name, value); }
  void field(std::string_view name, float& value) override;
  void field(std::string_view name, double& value) override { add(name, value); }
  void field(std::string_view name, std::string& value) override { add(name, value); }
  void field(std::string_view name, std::vector<int64_t>& value) override;
  void field(std::string_view name, std::vector<std::string>& value) override;
  void choice(std::string_view name, int& index, std::span<const std::string_view> names) override;
  void written(std::string_view name, std::string& text, bool (*)(std::string_view),
               std::string_view) override {
    add(name, text);
  }
  void enter(std::string_view name) override;
  void leave() override;

 private:
  void add(std::string_view name, Json value) {
    open_.back().push_back({std::string(name), std::move(value)});
  }

  std::vector<Members> open_;
  std::vector<std::string> names_;
};

/// Applies settings to the fields that they name. Throws ValueError that names key, origin, what it
/// got and what it expected: unknown key, wrong type, number that does not fit.
template <class Config>
void set_fields(Config& config, const Settings& settings) {
  FieldSetter setter(settings);
  Fields& fields = setter;
  config.visit(fields);
  setter.require_all_used();
}

/// The fields as a JSON object.
template <class Config>
Json to_json(Config& config) {
  FieldReader reader;
  Fields& fields = reader;
  config.visit(fields);
  return reader.take();
}

/// The text of a TOML file with those values; nested objects become tables. Reading it gives the
/// same values. Throws ValueError on null.
std::string to_toml(const Json& values);

/// Throws ValueError that names key, got and expected where a number lies outside its range.
void check_ranges(const Json& values, std::span<const Range> ranges);

/// A flag "--KEY" for every field of a configuration.
std::vector<Flag> flags_of(const Json& values);

/// Prints the text of --help and ends the process, with status 0 where it could be written.
[[noreturn]] void print_help(const std::string& help);

/// From here on standard output passes every line on when it ends, to pipes and files too, so that
/// a program that is killed has said what it has printed. Before anything is printed.
void flush_lines();

/// The whole way for a program with one configuration: defaults, --config, flags (one for each
/// field) and --set; calls flush_lines(). Throws ValueError and IoError; --help prints and ends the
/// process.
template <class Config>
Config parse_flags(int argc, const char* const* argv, const std::string& about = {}) {
  flush_lines();
  Config config;
  const CommandLine line = parse_command_line(argc, argv, flags_of(to_json(config)), about);
  if (!line.help.empty()) print_help(line.help);
  require_no_others(line);
  set_fields(config, line.settings);
  return config;
}

}  // namespace longspan
