#include "models/all/registry.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "models/adaptive_span/adaptive_span.h"
#include "models/bigbird/bigbird.h"
#include "models/bigbird/bigbird_pegasus.h"
#include "models/blockbert/blockbert.h"
#include "models/bp_transformer/bp_encoder.h"
#include "models/bp_transformer/bp_transformer.h"
#include "models/bp_transformer/bp_translator.h"
#include "models/compressive/compressive.h"
#include "models/etc/bigbird_etc.h"
#include "models/etc/etc.h"
#include "models/expire_span/expire_span.h"
#include "models/hibert/hibert.h"
#include "models/linformer/linformer.h"
#include "models/longformer/led.h"
#include "models/longformer/longformer.h"
#include "models/longformer/longformer_lm.h"
#include "models/performer/performer.h"
#include "models/reformer/reformer.h"
#include "models/routing/routing.h"
#include "models/sparse_transformer/sparse_transformer.h"
#include "models/transformer/transformer.h"
#include "models/transformer_xl/transformer_xl.h"
#include "nn/nearest.h"

namespace longspan {
namespace {

std::vector<ModelEntry>& entries() {
  static std::vector<ModelEntry> all{transformer_entry(),
                                     local_transformer_entry(),
                                     sparse_transformer_entry(),
                                     blockbert_entry(),
                                     bigbird_entry(),
                                     bigbird_etc_entry(),
                                     etc_entry(),
                                     linformer_entry(),
                                     longformer_entry(),
                                     longformer_lm_entry(),
                                     led_entry(),
                                     bigbird_pegasus_entry(),
                                     reformer_entry(),
                                     transformer_xl_entry(),
                                     adaptive_span_entry(),
                                     expire_span_entry(),
                                     compressive_entry(),
                                     performer_entry(),
                                     routing_entry(),
                                     bp_transformer_entry(),
                                     bp_encoder_entry(),
                                     bp_translator_entry(),
                                     hibert_entry()};
  return all;
}

void require_name(std::string_view what, std::string_view name) {
  const bool plain =
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
  require(!name.empty() && plain, "register_model",
          "{} \"{}\": expected one or more of a-z, 0-9 and _", what, name);
}

}  // namespace

std::span<const ModelEntry> models() { return entries(); }

void register_model(const ModelEntry& entry) {
  require_name("the name", entry.name);
  for (const ModelEntry& e : entries()) {
    require(e.name != entry.name, "register_model",
            "there is a model \"{}\" already; choose another name", entry.name);
  }
  require(entry.make != nullptr, "register_model", "{} has no function that makes its spec",
          entry.name);
  const bool small = !entry.presets.empty() && entry.presets.front().name == "small";
  require(small, "register_model",
          "the presets of {} begin with {}; expected \"small\" first, the default", entry.name,
          entry.presets.empty() ? "nothing" : fmt::format("\"{}\"", entry.presets.front().name));
  for (size_t i = 0; i < entry.presets.size(); ++i) {
    require_name(fmt::format("a preset of {},", entry.name), entry.presets[i].name);
    for (size_t j = 0; j < i; ++j) {
      require(entry.presets[i].name != entry.presets[j].name, "register_model",
              "{} has two presets \"{}\"", entry.name, entry.presets[i].name);
    }
  }
  entries().push_back(entry);
}

std::unique_ptr<ModelSpec> find_model(std::string_view name) {
  constexpr size_t longest = 200;  // with a misprint
  require(name.size() <= longest, "model", "there is no model \"{}\"", name);
  const size_t colon = name.find(':');
  const std::string_view model = name.substr(0, colon);
  std::string nearest;
  size_t distance = SIZE_MAX;
  const auto consider = [&](const std::string& candidate) {
    const bool begun = !name.empty() && candidate.starts_with(name);
    const size_t d = begun ? 1 : edit_distance(name, candidate);
    if (d < distance) {
      distance = d;
      nearest = candidate;
    }
  };
  for (const ModelEntry& entry : models()) {
    consider(std::string(entry.name));
    for (const Preset& p : entry.presets) {
      const bool plain = colon == std::string_view::npos && &p == entry.presets.data();
      if (entry.name == model && (plain || name.substr(colon + 1) == p.name)) {
        return entry.make(p.name);
      }
      consider(std::string(entry.name) + ":" + std::string(p.name));
    }
  }
  fail<ValueError>("model", "there is no model \"{}\"; did you mean \"{}\"?", name, nearest);
}

std::vector<std::string> models_that(bool (*has)(const LanguageModel&)) {
  std::vector<std::string> names;
  for (const ModelEntry& entry : models()) {
    if (has(*entry.make(entry.presets.front().name)->build(Init{.meta = true}))) {
      names.emplace_back(entry.name);
    }
  }
  return names;
}

}  // namespace longspan
