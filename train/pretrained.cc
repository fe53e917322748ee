#include "train/pretrained.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <unordered_set>
#include <vector>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/kernels/copy.h"
#include "data/io/files.h"
#include "data/io/json_members.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "train/state.h"

namespace longspan {
namespace {

constexpr const char* kCheckpoint = "checkpoint";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kConfig = "config.json";

std::string in_folder(const std::string& path, const char* file) {
  return kind_of_path(path, kCheckpoint) == PathKind::folder ? path + "/" + file : path;
}

bool is_fresh(std::span<const std::string_view> parts, std::string_view name) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return name.starts_with(part); });
}

std::string_view without(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

/// Members of config.json that do not affect what a model computes: where a file comes from, what
/// else it returns, how it is stored in memory, and how transformers generates from it.
constexpr std::string_view harmless[] = {
    "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels", "architectures",
    "attn_implementation", "chunk_size_feed_forward", "chunk_size_lm_head", "classif_dropout",
    "classifier_dropout", "dtype", "finetuning_task", "gradient_checkpointing", "hash_seed",
    "label2id", "id2label", "name_or_path", "num_labels", "onnx_export", "output_attentions",
    "output_hidden_states", "output_past", "problem_type", "return_dict", "task_specific_params",
    "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version",
    "use_bfloat16", "use_cache",
    // Poolers and heads of the original BERT.
    "cross_attention_hidden_size", "directionality", "init_range", "is_composition", "model_name",
    "n_ctx", "reorder_and_upcast_attn", "tgt_len", "trainer_compatible", "pooler_fc_size",
    "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    // Summaries of a sequence, which no head here has.
    "summary_activation", "summary_first_dropout", "summary_last_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj",
    // Token ids that the calling programs insert themselves.
    "bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    // How to generate.
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "force_bos_token_to_be_generated", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_scores", "prefix", "remove_invalid_values",
    "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature", "top_k",
    "top_p", "typical_p"};

/// What all types expect that do not say otherwise.
constexpr OnlyValue only[] = {
    {"add_bias_logits", "false", "it has no other biases"},
    {"add_cross_attention", "false", "no encoder here reads a second sequence"},
    {"add_final_layer_norm", "false", "it has no norm after the last layer"},
    {"attention_mode", "\"longformer\"", "attention is that of Longformer"},
    {"attn_type", "0", "attention is that of Transformer-XL"},
    {"decoder_layerdrop", "0", "layers are not dropped in training"},
    {"encoder_layerdrop", "0", "layers are not dropped in training"},
    {"ext_len", "0", "a memory ends where its segment begins"},
    {"extra_pos_embeddings", "2", "position tables begin at row 2"},
    {"ignore_attention_mask", "false", "padding is not seen"},
    {"init", "\"normal\"", "initial weights have a normal distribution"},
    {"is_decoder", "false", "only encoders and encoder-decoders of this type are here"},
    {"is_encoder_decoder", "false", "it is an encoder alone"},
    {"normalize_before", "false", "norms come after the branches"},
    {"normalize_embedding", "true", "there is a norm after the tables"},
    {"position_embedding_type", "\"absolute\"", "positions are a table that is added to tokens"},
    {"proj_init_std", "0.01", "initial projections of clusters have this deviation"},
    {"pruned_heads", "{}", "every layer has all heads"},
    {"sample_softmax", "-1", "the softmax is over all tokens"},
    {"sinusoidal_pos_embds", "false", "positions are learned"},
    {"static_position_embeddings", "false", "positions are learned"},
    {"tie_encoder_decoder", "false", "encoder and decoder have parameters of their own"},
    {"tie_weight", "true", "tie_word_embeddings says what is tied"},
};

bool equal(const Json& a, const Json& b) {
  return a.is_number() && b.is_number() ? a.number() == b.number() : a == b;
}

/// Returns the number of layers of a configuration whose keys have another name for it than
/// num_hidden_layers, or null.
Json layers_of(const Json& given, const Json& known) {
  for (const char* name : {"encoder_layers", "n_layer", "attn_layers"}) {
    const Json* ours = known.find(name);
    if (ours == nullptr) continue;
    const Json* theirs = given.find(name);
    const Json& value = theirs != nullptr ? *theirs : *ours;
    return value.is_array() ? Json(std::ssize(value.array())) : value;
  }
  return {};
}

/// Returns why a member that becomes no field cannot be ignored; empty if it can.
std::string objection(const JsonMember& m, const Json& given, const Json& known,
                      const PretrainedMembers& others) {
  const auto is_name = [&](std::string_view name) { return name == m.name; };
  if (std::any_of(others.accepted.begin(), others.accepted.end(), is_name) ||
      std::any_of(others.never_read.begin(), others.never_read.end(), is_name)) {
    return {};
  }
  if (m.name == "num_hidden_layers") {
    const Json layers = layers_of(given, known);
    return layers.is_null() || equal(m.value, layers)
               ? ""
               : fmt::format("num_hidden_layers is {}; expected {}, as another member says",
                             to_string(m.value), to_string(layers));
  }
  for (const std::span<const OnlyValue> list : {others.only, std::span<const OnlyValue>(only)}) {
    for (const OnlyValue& o : list) {
      if (o.name != m.name) continue;
      if (equal(m.value, parse_json(o.value))) return {};
      return fmt::format("{} is {}; expected {}: {}", m.name, to_string(m.value), o.value, o.why);
    }
  }
  if (std::any_of(std::begin(harmless), std::end(harmless), is_name)) return {};
  return fmt::format("{} is {}, and is not known here", m.name, to_string(m.value));
}

/// Converts {"0": "yes", "1": "no"} to ["yes", "no"]. Throws ValueError unless each number has one
/// name.
Json names_of_labels(const Json& object) {
  Json::Array names(object.object().size());
  for (const JsonMember& m : object.object()) {
    size_t i = names.size();
    std::from_chars(m.name.data(), m.name.data() + m.name.size(), i);
    const bool is_place = i < names.size() && fmt::format("{}", i) == m.name;
    require(is_place && m.value.is_string(), kCheckpoint,
            "id2label has \"{}\": {}; expected names for \"0\" to \"{}\"", m.name,
            to_string(m.value), names.size() - 1);
    names[i] = m.value;
  }
  return Json(std::move(names));
}

/// Converts [true, false] to [1, 0]; returns other arrays as they are.
Json numbers_of_flags(const Json& array) {
  Json::Array numbers = array.array();
  for (Json& item : numbers) {
    if (item.is_bool()) item = Json(int64_t{item.boolean()});
  }
  return Json(std::move(numbers));
}

/// Collects faults and formats them, one line each; at most `shown` of a kind.
class Faults {
 public:
  void add(std::string kind, const std::string& name) { of_kind_[std::move(kind)].push_back(name); }
  bool none() const { return of_kind_.empty(); }
  std::string text() const {
    constexpr size_t shown = 20;
    std::string text;
    for (const auto& [kind, names] : of_kind_) {
      text += fmt::format("\n  {} {}:", names.size(), kind);
      for (size_t i = 0; i < std::min(shown, names.size()); ++i) text += "\n    " + names[i];
      if (names.size() > shown) text += fmt::format("\n    and {} more", names.size() - shown);
    }
    return text;
  }

 private:
  std::map<std::string, std::vector<std::string>> of_kind_;
};

/// One tensor of a file, and the tensors here that it holds, stacked along its first axis.
struct Stacked {
  std::string name;
  std::vector<Tensor> parts;

  Shape shape() const {
    Shape all = parts[0].shape();
    for (size_t i = 1; i < parts.size(); ++i) all[0] += parts[i].dim(0);
    return all;
  }
};

/// Collects tensors of the same name, in the order in which the names first occur. Throws
/// ShapeError unless they differ in their first axis alone.
std::vector<Stacked> stacked(const TensorList& tensors) {
  std::vector<Stacked> all;
  std::map<std::string_view, size_t> place;
  for (const NamedTensor& t : tensors) {
    const auto [at, is_new] = place.try_emplace(t.name, all.size());
    if (is_new) all.push_back({t.name, {}});
    all[at->second].parts.push_back(t.tensor);
  }
  for (const Stacked& s : all) {
    const Shape first = s.parts[0].shape();
    for (size_t i = 1; i < s.parts.size(); ++i) {
      const Shape other = s.parts[i].shape();
      const bool fits = first.rank() > 0 && other.rank() == first.rank() &&
                        std::equal(std::next(first.begin()), first.end(), std::next(other.begin()));
      require<ShapeError>(fits, kCheckpoint,
                          "{} has parts of shapes {} and {}; expected the same but for the first "
                          "axis",
                          s.name, to_string(first), to_string(other));
    }
  }
  return all;
}

/// Whether two tensors of files have the same shape and values, bit for bit after their conversion
/// if the dtypes differ.
bool same_values(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return false;
  if (a.dtype() != b.dtype()) return same_values(cast(a, DType::f64), cast(b, DType::f64));
  return a.numel() == 0 ||
         std::memcmp(a.view().data, b.view().data, static_cast<size_t>(a.nbytes())) == 0;
}

/// Whether a table [P, D] holds the sines and cosines of positions 0 to P - 1.
bool sinusoids_hold(const Tensor& x) {
  if (x.rank() != 2 || x.dim(1) % 2 != 0) return false;
  const auto width = static_cast<double>(x.dim(1));
  const std::vector<double> values = cast(x, DType::f64).to_vector<double>();
  const int64_t half = x.dim(1) / 2;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t k = i % x.dim(1);
    const double angle = static_cast<double>(i / x.dim(1)) *
                         std::pow(10'000.0, -2 * static_cast<double>(k % half) / width);
    const double want = k < half ? std::sin(angle) : std::cos(angle);
    if (!(std::abs(values[static_cast<size_t>(i)] - want) <= 1e-2)) return false;
  }
  return true;
}

/// Whether a table of constants has the values of its kind, up to rounding.
bool constants_hold(OtherName::Kind kind, const Tensor& x) {
  if (kind == OtherName::Kind::sinusoids) return sinusoids_hold(x);
  const std::vector<double> values = cast(x, DType::f64).to_vector<double>();
  const double tolerance = is_floating(x.dtype()) && size_of(x.dtype()) < 4 ? 1e-2 : 1e-6;
  const double d = 2 * static_cast<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<double>(i);
    const bool ordinal = kind == OtherName::Kind::ordinals;
    const double want = ordinal ? at : std::pow(10'000.0, -2 * at / d);
    if (!(std::abs(values[i] - want) <= tolerance * want)) return false;
  }
  return true;
}

/// The tensors of a file by their names without the prefix, and those that were read.
class Given {
 public:
  Given(const TensorList& tensors, const PretrainedNames& names, Faults& faults)
      : names_(names), faults_(faults) {
    for (const NamedTensor& t : tensors) {
      const bool is_new = found_.try_emplace(without(t.name, names.prefix), &t).second;
      if (!is_new) faults.add("with and without their prefix", t.name);
    }
  }

  void want(std::string_view name) { wanted_.insert(name); }

  /// Whether the file is read under another name than this one, which counts where that is missing.
  bool is_spare(std::string_view name) const {
    return std::any_of(names_.unused.begin(), names_.unused.end(), [&](const OtherName& o) {
      return o.kind == OtherName::Kind::instead && o.name == name && wanted_.contains(o.of);
    });
  }

  /// Returns the tensor of this name, or else one that may replace it (OtherName); null if there is
  /// neither. A copy that is a parameter of the model itself replaces no other.
  const NamedTensor* take(std::string_view name) {
    const NamedTensor* t = find(name);
    for (const OtherName& o : names_.unused) {
      const bool own = o.kind == OtherName::Kind::copy && wanted_.contains(o.name);
      if (t == nullptr && o.of == name && !own) t = find(o.name);
    }
    if (t != nullptr) read_[name] = t;
    return t;
  }

  /// Looks at everything that was not read under its own name.
  void check_others() {
    for (const auto& [name, t] : found_) {
      if (const auto at = read_.find(name); at == read_.end()) check_other(name, *t);
    }
  }

 private:
  const NamedTensor* find(std::string_view name) const {
    const auto at = found_.find(name);
    return at == found_.end() ? nullptr : at->second;
  }

  void check_other(std::string_view name, const NamedTensor& t) {
    using Kind = OtherName::Kind;
    const auto known =
        std::find_if(names_.unused.begin(), names_.unused.end(), [&](const OtherName& o) {
          return name == o.name && (o.of.empty() || wanted_.contains(o.of));
        });
    if (known == names_.unused.end()) return faults_.add("unknown", t.name);
    if (known->kind == Kind::copy) {
      const auto of = read_.find(known->of);
      if (of == read_.end() || same_values(t.tensor, of->second->tensor)) return;
      faults_.add("with other values than the tensor that they should copy",
                  fmt::format("{} and {}: {}", t.name, of->second->name, known->remedy));
    } else if (known->kind == Kind::ordinals && !constants_hold(known->kind, t.tensor)) {
      faults_.add("constants of other values than here", t.name + ": expected 0, 1, 2, ...");
    } else if (known->kind == Kind::sinusoids && !constants_hold(known->kind, t.tensor)) {
      faults_.add("constants of other values than here",
                  t.name + ": expected the sines, then the cosines, of positions 0, 1, ...");
    } else if (known->kind == Kind::frequencies && !constants_hold(known->kind, t.tensor)) {
      faults_.add("constants of other values than here",
                  t.name + ": expected 10000^(-2 i / d) for i = 0, 1, ...");
    }
  }

  const PretrainedNames& names_;
  Faults& faults_;
  std::map<std::string_view, const NamedTensor*> found_, read_;
  std::set<std::string_view> wanted_;
};

}  // namespace

void load_pretrained(const std::string& path, const TensorList& into,
                     const PretrainedNames& names) {
  const std::string file = in_folder(path, kWeights);
  load_pretrained(read_tensors(file), file, into, names);
}

void load_pretrained(const TensorList& tensors, const std::string& file, const TensorList& into,
                     const PretrainedNames& names) {
  Faults faults;
  Given given(tensors, names, faults);
  const std::vector<Stacked> wanted = stacked(into);
  for (const Stacked& want : wanted) given.want(without(want.name, names.prefix));

  std::vector<std::pair<Tensor, Tensor>> copies;
  std::map<const void*, const NamedTensor*> whole;  // by the place that they are read into
  for (const Stacked& want : wanted) {
    const std::string_view name = without(want.name, names.prefix);
    if (given.is_spare(name)) continue;
    const NamedTensor* found = given.take(name);
    if (found == nullptr) {
      if (!is_fresh(names.fresh, want.name)) faults.add("missing", want.name);
      continue;
    }
    const Tensor& x = found->tensor;
    if (x.shape() != want.shape() || !is_floating(x.dtype())) {
      faults.add("of another kind",
                 fmt::format("{}: {} {}, expected {} {}", found->name, name_of(x.dtype()),
                             to_string(x.shape()), name_of(want.parts[0].dtype()),
                             to_string(want.shape())));
      continue;
    }
    int64_t row = 0;
    for (const Tensor& part : want.parts) {
      const bool alone = want.parts.size() == 1;
      copies.emplace_back(part, alone ? x : narrow(x, 0, row, part.dim(0)));
      if (!alone) row += part.dim(0);
      if (!alone || part.numel() == 0) continue;
      const NamedTensor* first = whole.try_emplace(part.view().data, found).first->second;
      if (first != found && !same_values(x, first->tensor)) {
        faults.add("with other values than the tensor that they should copy",
                   fmt::format("{} and {}: one parameter here", found->name, first->name));
      }
    }
  }
  given.check_others();
  require<IoError>(faults.none(), kCheckpoint, "{} does not fit the model:{}", file, faults.text());

  const NoGrad off;
  for (auto& [to, from] : copies) {
    const Tensor x = to_device(cast(from, to.dtype()), to.device());
    kernels::copy(to.device(), x.view(), to.mut());
  }
}

void save_pretrained(const std::string& folder, const TensorList& tensors, const Json& config) {
  const NoGrad off;
  TensorList whole;
  for (const Stacked& s : stacked(tensors)) {
    whole.push_back({s.name, s.parts.size() == 1 ? s.parts[0] : concat(s.parts, 0)});
  }
  make_folders(folder, kCheckpoint);
  write_tensors(folder + "/" + kWeights, whole, {{"format", "pt"}});
  replace_file(folder + "/" + kConfig, to_string(pretrained_json(config)) + "\n", kCheckpoint);
}

namespace {

/// Returns a number that was an f32 in the fewest digits that give that f32.
Json shortest(const Json& value) {
  if (!value.is_number() || value.is_integer()) return value;
  const auto narrow_value = static_cast<float>(value.number());
  if (static_cast<double>(narrow_value) != value.number()) return value;
  return parse_json(fmt::format("{:#}", narrow_value));
}

}  // namespace

Json pretrained_json(const Json& config) {
  Members members;
  for (const JsonMember& m : config.object()) {
    const bool absent =
        (m.name == "classifier_dropout" && m.value.is_number() && m.value.number() < 0) ||
        (m.name == "n_inner" && m.value == Json(0)) ||
        (m.name == "hash_seed" && m.value == Json(-1));
    if (absent) {
      members.push_back({m.name, Json()});
    } else if (m.name == "tie_projs" && m.value.is_array()) {
      Json::Array flags;
      for (const Json& item : m.value.array()) flags.push_back(Json(item.integer() != 0));
      members.push_back({m.name, Json(std::move(flags))});
    } else if (m.name == "id2label" && m.value.is_array()) {
      Members names, numbers;
      std::unordered_set<std::string_view> known;
      int64_t i = 0;
      for (const Json& name : m.value.array()) {
        names.push_back({fmt::format("{}", i), name});
        if (known.insert(name.string()).second) numbers.push_back({name.string(), i});
        ++i;
      }
      if (names.empty()) continue;
      members.push_back({m.name, Json(std::move(names))});
      members.push_back({"label2id", Json(std::move(numbers))});
    } else {
      members.push_back({m.name, shortest(m.value)});
    }
  }
  return Json(std::move(members));
}

Json read_pretrained_json(const std::string& path) {
  return read_json_object(in_folder(path, kConfig), kCheckpoint);
}

Settings settings_of_members(const Json& given, const std::string& origin, const Json& known,
                             const PretrainedMembers& others,
                             std::vector<std::string>& objections) {
  Settings settings;
  for (const JsonMember& m : given.object()) {
    if (m.value.is_null()) continue;
    const Json* ours = known.find(m.name);
    if (ours == nullptr) {
      std::string text = objection(m, given, known, others);
      if (!text.empty()) objections.push_back(std::move(text));
      continue;
    }
    Json value = m.value;
    if (ours->is_array() && value.is_integer()) value = Json(Json::Array{value});
    if (ours->is_array() && value.is_object()) value = names_of_labels(value);
    if (m.name == "tie_projs" && value.is_array()) value = numbers_of_flags(value);
    settings.push_back({m.name, value, origin});
  }
  return settings;
}

Settings read_pretrained_config(const std::string& path, const Json& known,
                                const PretrainedMembers& others) {
  const std::string file = in_folder(path, kConfig);
  const Json given = read_pretrained_json(file);
  std::vector<std::string> objections;
  Settings settings = settings_of_members(given, file, known, others, objections);
  const Json* type = given.find("model_type");
  require(
      objections.empty(), kCheckpoint,
      "{}, model_type {}, says what this model would not do:\n  {}\nName a member in `accepted` "
      "of load_pretrained_config() where you know that it changes nothing",
      file, type != nullptr ? to_string(*type) : "unknown", fmt::join(objections, "\n  "));
  return settings;
}

}  // namespace longspan
