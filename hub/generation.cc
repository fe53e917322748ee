#include "hub/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "train/pretrained.h"

namespace longspan {
namespace {

constexpr const char* kGenerationConfig = "generation_config.json";

/// Members that change what is written, unless they have this value: none, "0", "1" or "false".
constexpr std::pair<std::string_view, std::string_view> unread_settings[] = {
    {"bad_words_ids", ""},
    {"begin_suppress_tokens", ""},
    {"constraints", ""},
    {"diversity_penalty", "0"},
    {"do_sample", "false"},
    {"encoder_no_repeat_ngram_size", "0"},
    {"encoder_repetition_penalty", "1"},
    {"exponential_decay_length_penalty", ""},
    {"force_words_ids", ""},
    {"forced_decoder_ids", ""},
    {"guidance_scale", "1"},
    {"min_new_tokens", ""},
    {"max_new_tokens", ""},
    {"num_beam_groups", "1"},
    {"penalty_alpha", "0"},
    {"prefix_allowed_tokens_fn", ""},
    {"remove_invalid_values", "false"},
    {"renormalize_logits", "false"},
    {"sequence_bias", ""},
    {"stop_strings", ""},
    {"suppress_tokens", ""},
    {"token_healing", "false"},
    {"watermarking_config", ""},
};

bool is_neutral(const Json& value, std::string_view neutral) {
  if (value.is_bool()) return neutral == "false" && !value.boolean();
  if (value.is_number() && !neutral.empty() && neutral != "false") {
    return value.number() == (neutral == "1" ? 1 : 0);
  }
  return value.is_array() && value.array().empty();
}

/// Returns the member of that name unless it is null or missing.
const Json* member(const Json& members, std::string_view name) {
  const Json* found = members.find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

std::optional<int64_t> integer(const Json& members, std::string_view name) {
  const Json* found = member(members, name);
  if (found == nullptr) return {};
  require(found->is_integer() && found->integer() >= 0, kGenerationConfig,
          "{} is {}; expected an integer, 0 or more", name, to_string(*found));
  return found->integer();
}

std::optional<double> number(const Json& members, std::string_view name) {
  const Json* found = member(members, name);
  if (found == nullptr) return {};
  require(found->is_number(), kGenerationConfig, "{} is {}; expected a number", name,
          to_string(*found));
  return found->number();
}

std::optional<EarlyStopping> early_stopping(const Json& members) {
  const Json* found = member(members, "early_stopping");
  if (found == nullptr) return {};
  if (found->is_bool()) return found->boolean() ? EarlyStopping::true_ : EarlyStopping::false_;
  require(*found == Json("never"), kGenerationConfig,
          "early_stopping is {}; expected true, false or \"never\"", to_string(*found));
  return EarlyStopping::never;
}

}  // namespace

HubGeneration read_hub_generation(const HubFolder& folder) {
  const std::string path = folder.path + "/generation_config.json";
  const bool own = !folder.path.empty() && std::filesystem::exists(path);
  const Json all = own ? read_pretrained_json(path) : folder.members;
  HubGeneration g;
  g.start = integer(all, "decoder_start_token_id");
  const Json* end = member(all, "eos_token_id");
  const bool several = end != nullptr && end->is_array();
  if (!several) g.end = integer(all, "eos_token_id");
  if (several && !end->array().empty() && end->array()[0].is_integer()) {
    g.end = end->array()[0].integer();
  }
  g.forced = integer(all, "forced_bos_token_id");
  if (const auto forced = integer(all, "forced_eos_token_id")) {
    const int64_t usual = g.end.value_or(folder.ids.end.value_or(*forced));
    g.force_end = *forced == usual;
    if (!g.force_end) {
      g.others.push_back(
          fmt::format("forced_eos_token_id = {}, where eos_token_id is {}", *forced, usual));
    }
  }
  g.shortest = integer(all, "min_length");
  g.beams = integer(all, "num_beams");
  g.no_repeat_ngram = integer(all, "no_repeat_ngram_size");
  g.length_penalty = number(all, "length_penalty");
  g.repetition_penalty = number(all, "repetition_penalty");
  g.early_stopping = early_stopping(all);
  for (const auto& [name, neutral] : unread_settings) {
    const Json* found = member(all, name);
    if (found == nullptr || is_neutral(*found, neutral)) continue;
    g.others.push_back(fmt::format("{} = {}", name, to_string(*found)));
  }
  return g;
}

}  // namespace longspan
