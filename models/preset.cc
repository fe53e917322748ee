#include "models/preset.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"

namespace longspan {
namespace {

/// Splits a text at a character; an empty text has no parts.
std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// Sets fields from the text of a preset.
class PresetReader final : public Fields {
 public:
  PresetReader(std::string_view model, const Preset& preset) : model_(model), preset_(preset) {
    for (const std::string_view part : parts_of(preset.fields, ' ')) {
      const size_t equals = part.find('=');
      require(equals != std::string_view::npos, model_, "preset {}: \"{}\" sets nothing",
              preset.name, part);
      given_[part.substr(0, equals)] = part.substr(equals + 1);
    }
  }

  /// Throws if a field of the preset has not been visited.
  void require_all_visited() const {
    if (given_.empty()) return;
    fail<ValueError>(model_, "preset {} sets {}, which is no field", preset_.name,
                     given_.begin()->first);
  }

  void field(std::string_view name, bool& value) override {
    read(name, [&](std::string_view text) {
      value = text == "true";
      return value || text == "false";
    });
  }
  void field(std::string_view name, int64_t& value) override { number(name, value); }
  void field(std::string_view name, uint64_t& value) override { number(name, value); }
  void field(std::string_view name, float& value) override { number(name, value); }
  void field(std::string_view name, double& value) override { number(name, value); }
  void field(std::string_view name, std::string& value) override {
    read(name, [&](std::string_view text) {
      value = text;
      return true;
    });
  }
  void field(std::string_view name, std::vector<int64_t>& value) override {
    read(name, [&](std::string_view text) {
      value.clear();
      for (const std::string_view part : parts_of(text, ',')) {
        if (!parse(part, value.emplace_back())) return false;
      }
      return true;
    });
  }
  void field(std::string_view name, std::vector<std::string>& value) override {
    read(name, [&](std::string_view text) {
      value.clear();
      for (const std::string_view part : parts_of(text, ',')) value.emplace_back(part);
      return true;
    });
  }
  void choice(std::string_view name, int& index, std::span<const std::string_view> names) override {
    read(name, [&](std::string_view text) {
      const auto at = std::find(names.begin(), names.end(), text);
      if (at != names.end()) index = static_cast<int>(at - names.begin());
      return at != names.end();
    });
  }
  void written(std::string_view name, std::string& value, bool (*valid)(std::string_view),
               std::string_view) override {
    read(name, [&](std::string_view text) {
      value = text;
      return valid(text);
    });
  }
  void enter(std::string_view) override {}
  void leave() override {}

 private:
  template <class T>
  static bool parse(std::string_view text, T& value) {
    const auto end = text.data() + text.size();
    return std::from_chars(text.data(), end, value) == std::from_chars_result{end, std::errc{}};
  }
  template <class T>
  void number(std::string_view name, T& value) {
    read(name, [&](std::string_view text) { return parse(text, value); });
  }
  /// Calls set(text) if the preset has the field.
  template <class F>
  void read(std::string_view name, F set) {
    const auto at = given_.find(name);
    if (at == given_.end()) return;
    require(set(at->second), model_, "preset {}: {} cannot be \"{}\"", preset_.name, name,
            at->second);
    given_.erase(at);
  }

  std::string_view model_;
  const Preset& preset_;
  std::map<std::string_view, std::string_view> given_;
};

}  // namespace

const Preset& find_preset(std::string_view model, std::span<const Preset> presets,
                          std::string_view name) {
  const auto at =
      std::find_if(presets.begin(), presets.end(), [&](const Preset& p) { return p.name == name; });
  require(at != presets.end(), model, "there is no preset \"{}\"", name);
  return *at;
}

void apply_preset(std::string_view model, std::span<const Preset> presets, std::string_view name,
                  const std::function<void(Fields&)>& visit) {
  const Preset& preset = find_preset(model, presets, name);
  if (!preset.like.empty()) apply_preset(model, presets, preset.like, visit);
  PresetReader reader(model, preset);
  visit(reader);
  reader.require_all_visited();
}

}  // namespace longspan
