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

/// A value for a field, and its origin.
struct Setting {
  std::string key;     ///< "model.dropout"
  Json value;          ///< of a file; from the command line always a string
  std::string origin;  ///< "--batch" or "run.toml:12", for error messages
  bool text = false;   ///< from the command line: the string is parsed as the field's type
};

/// Settings in the given order; the last one for a key wins.
using Settings = std::vector<Setting>;

/// Returns the last setting of a key, or null.
const Setting* last_setting(const Settings& settings, std::string_view key);
/// Returns whether the last setting of a switch is true.
bool is_on(const Settings& settings, std::string_view key);

/// Reads a TOML file, at most 1 MiB. Throws IoError, ValueError with line and column.
Settings read_toml(const std::string& path);
/// The same for text; `source` names it in error messages.
Settings parse_toml(std::string_view text, const std::string& source);

/// Parses "key=value". Throws ValueError if the key or the "=" is missing.
Setting parse_setting(std::string_view text, const std::string& origin);

/// An option of the command line.
struct Flag {
  std::string name;        ///< "--save-every"; "--save_every" is the same
  std::string key;         ///< the key that it sets, "save_every"; empty: read it with
                           ///< CommandLine::value()
  std::string help;        ///< one line
  bool is_switch = false;  ///< takes no value; "--resume" means true, "--resume=false" false
  bool hidden = false;     ///< not in the text of --help
  std::string also = {};   ///< words that others use for it, "epochs iterations": whoever types one
                           ///< is told its name here
};

/// A key of a configuration.
struct Key {
  std::string name;     ///< "optimizer.lr"
  std::string value;    ///< as JSON, a text without quotes
  std::string meaning;  ///< one line; may be empty
};

/// A parsed command line. "--config FILE", "--set KEY=VALUE" and "--help" are always accepted.
struct CommandLine {
  Settings settings;                ///< first those of --config, then flags and --set in order
  std::vector<Setting> values;      ///< flags without a key, by name
  std::vector<std::string> others;  ///< arguments that belong to no flag
  std::string help;                 ///< the text to print if --help was given, else empty
  std::string command = {};         ///< set by programs that have several

  /// Returns the last value of a flag without a key, or null.
  const std::string* value(std::string_view flag) const;
};

/// Throws ValueError for an unknown flag, naming the nearest one or the key that was meant, or for
/// a missing value; IoError if the file of --config cannot be read. argv[0] is skipped. The text of
/// --help ends with the keys that no flag sets.
CommandLine parse_command_line(int argc, const char* const* argv, std::span<const Flag> flags,
                               const std::string& about = {}, std::span<const Key> keys = {});

/// Throws ValueError if there are arguments that belong to no flag.
void require_no_others(const CommandLine& line);

/// Sets fields from settings; used by set_fields() below.
class FieldSetter final : public Fields {
 public:
  explicit FieldSetter(const Settings& settings) : settings_(settings) {}
  /// Throws ValueError if a setting matches no field, naming the nearest one.
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

/// Collects fields as a JSON object with the same nesting.
class FieldReader final : public Fields {
 public:
  FieldReader() : open_(1) {}
  Json take() { return Json(std::move(open_[0])); }
  /// Returns the fields read so far as keys.
  std::vector<Key> take_keys() { return std::move(keys_); }

  void means(std::string_view /*name*/, std::string_view meaning) override { meaning_ = meaning; }
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
  void add(std::string_view name, Json value);

  std::vector<Members> open_;
  std::vector<std::string> names_;
  std::string meaning_;  // of the next field
  std::vector<Key> keys_;
};

/// Applies settings to the fields that they name. Throws ValueError that names key, origin, the
/// given and the expected value: for an unknown key, a wrong type, or a number that does not fit.
template <class Config>
void set_fields(Config& config, const Settings& settings) {
  FieldSetter setter(settings);
  Fields& fields = setter;
  config.visit(fields);
  setter.require_all_used();
}

/// Returns the fields as a JSON object.
template <class Config>
Json to_json(Config& config) {
  FieldReader reader;
  Fields& fields = reader;
  config.visit(fields);
  return reader.take();
}

/// Returns the keys of a configuration with their values and meanings, in their order.
template <class Config>
std::vector<Key> keys_of(Config& config) {
  FieldReader reader;
  Fields& fields = reader;
  config.visit(fields);
  return reader.take_keys();
}

/// Returns the values as the text of a TOML file; nested objects become tables. Parsing it gives
/// the same values. A field with a meaning gets it as a comment, if its key is among `keys`. Throws
/// ValueError on null.
std::string to_toml(const Json& values, std::span<const Key> keys = {});

/// Checks numbers against the ranges of their fields; used by check_ranges() below.
class RangeChecker final : public RangedFields {
 public:
  RangeChecker(const Settings& settings, std::string_view except)
      : settings_(settings), except_(except) {}

 private:
  void number(const Number& number, const Range& range) override;

  const Settings& settings_;
  std::string_view except_;
};

/// Throws ValueError that names key, given and expected value if a number is outside the range of
/// its field, and the file if one of `settings` has set it. Leaves out the section `except`, whose
/// owner checks it.
template <class Config>
void check_ranges(Config& config, const Settings& settings = {}, std::string_view except = {}) {
  RangeChecker checker(settings, except);
  Fields& fields = checker;
  config.visit(fields);
}

/// Returns a flag "--KEY" for every field of a configuration.
std::vector<Flag> flags_of(const Json& values);

/// Prints the text of --help and exits, with status 0 if it could be written.
[[noreturn]] void print_help(const std::string& help);

/// Makes standard output line-buffered, even for pipes and files, so that output is not lost when
/// the program is killed. Call it before anything is printed.
void flush_lines();

/// Reads the configuration of a program that has one: defaults, --config, flags (one per field) and
/// --set; calls flush_lines(). Throws ValueError and IoError; --help prints and exits.
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
