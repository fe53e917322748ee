#include "app/run.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "app/run_folder.h"
#include "core/backends.h"
#include "core/error.h"
#include "data/data_sets.h"
#include "models/document_model.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan {
namespace {

/// Returns the number of rows of a model's position table before the first position; 0 if it has no
/// such field.
int64_t position_offset(ModelSpec& model) {
  const Json fields = to_json(model);
  const Json* offset = fields.find("position_offset");
  return offset == nullptr ? 0 : offset->integer();
}

}  // namespace

TrainingRun::TrainingRun(RunConfig c, std::string folder)
    : config(std::move(c)), out(std::move(folder)) {
  set_process(config);
  device = parse_device(config.device);
  if (config.memory_limit.bytes > 0) set_memory_limit(device, config.memory_limit.bytes);
  model = config.model->build(Init{generator().fork("init"), device});
  require_length(config, *model);
  const bool documents = find_data_set(config.task).kind == DataKind::documents;
  const bool sequence = model->objective() == Objective::sequence;
  const bool sentences = ask<ReadsDocuments>(*model) != nullptr;
  const bool labelled = find_data_set(config.task).kind == DataKind::generated_documents;
  require(documents || !sequence, "task",
          "{} maps a sequence to another and the task {} has only one; choose a decoder or an "
          "encoder, or a task with documents and summaries such as wiki-leads",
          config.model_name, config.task);
  require(sequence || sentences || !documents, "task",
          "{} has documents and summaries, and {} reads one sequence; choose an encoder-decoder "
          "such as led or transformer:base, or hibert, which finds the sentences of a summary",
          config.task, config.model_name);
  require(sentences || !labelled, "task",
          "{} has documents of sentences, and {} reads one sequence; choose hibert", config.task,
          config.model_name);
  for (const auto& [name, given] : {std::pair{"documents", config.documents > 0 && !labelled},
                                    {"target_length", config.target_length > 0},
                                    {"gap_sentences", config.gap_sentences > 0}}) {
    require(documents || !given, name,
            "is for tasks with documents and summaries such as wiki-leads; {} has none: leave it "
            "out",
            config.task);
    require(sequence || !given || std::string_view(name) == "documents", name,
            "is for encoder-decoders such as led, and {} is none: leave it out", config.model_name);
  }
  const Json fields = to_json(*config.model);
  const Json* random = fields.find("random");
  require(random == nullptr || !(*random == Json("given")), "model.random",
          "got given, whose blocks a program sets; expected uniform or first_1024");
  const bool masked = model->objective() == Objective::masked_token;
  const bool hides_bytes = masked && config.task == "bytes" && config.tokenizer.empty();
  require(!hides_bytes || model->vocab() > 256, "model.vocab",
          "got {}; expected 257 or more, the bytes and a token that hides them", model->vocab());
  require(!hides_bytes || mask_token(*model) >= 256, "model.mask_id",
          "got {}, which is a byte; expected 256 or more, of which no text has any",
          mask_token(*model));
  require(model->vocab() >= 256 || config.task != "bytes" || !config.tokenizer.empty(),
          "model.vocab", "got {}; expected 256 or more, one for each byte", model->vocab());
}

std::unique_ptr<Optimizer> make_optimizer(const RunConfig::Optimizer& o,
                                          const TensorList& weights) {
  const AdamOptions adam{o.beta1, o.beta2, o.eps, o.weight_decay};
  switch (o.name) {
    case OptimizerName::adamw:
      return std::make_unique<AdamW>(decay_matrices(weights), adam);
    case OptimizerName::lamb:
      return std::make_unique<Lamb>(decay_matrices(weights),
                                    LambOptions{o.beta1, o.beta2, o.eps, o.weight_decay});
    case OptimizerName::adafactor:
      return std::make_unique<Adafactor>(weights, AdafactorOptions{.weight_decay = o.weight_decay});
    case OptimizerName::adagrad:
      return std::make_unique<Adagrad>(
          weights, AdagradOptions{.weight_decay = o.weight_decay, .step_clip = o.step_clip});
    case OptimizerName::sgd:
      return std::make_unique<Sgd>(weights, SgdOptions{o.momentum, o.weight_decay});
    case OptimizerName::adam:
      break;
  }
  return std::make_unique<Adam>(weights, adam);
}

LossScale make_loss_scale(const RunConfig& c) {
  if (c.optimizer.loss_scale > 0) return LossScale::fixed(c.optimizer.loss_scale);
  const Json fields = to_json(*c.model);
  const Json* precision = fields.find("precision");
  const bool f16 = precision != nullptr && *precision == Json("f16");
  return f16 ? LossScale::dynamic() : LossScale::fixed(1);
}

namespace {

/// The meaning of a run's token ids.
struct TokenKind {
  std::string name;
  std::string identity;  // same_tokens()
};

/// Returns the name of the tokenizer that a run reads, "" if there is none to be read.
std::string tokenizer_of(const RunConfig& c) {
  if (find_data_set(c.task).kind == DataKind::chars) return "char27";
  return c.tokenizer == "bytes" ? "" : c.tokenizer;
}

std::string name_of_tokens(const RunConfig& c) {
  const DataSet& set = find_data_set(c.task);
  if (const std::string tokenizer = tokenizer_of(c); !tokenizer.empty()) return tokenizer;
  switch (set.kind) {
    case DataKind::bytes:
    case DataKind::documents:
    case DataKind::choices:
    case DataKind::trivia:
      return "bytes";
    case DataKind::words:
      return fmt::format("words of {}", set.id);
    case DataKind::generated_labels:
    case DataKind::generated_tokens:
    case DataKind::generated_span:
    case DataKind::generated_documents:
      return c.generated->tokens();
    case DataKind::promoters:
    case DataKind::profiles:
      if (!c.tokenizer.empty()) return "bytes";
      return fmt::format("runs of {} bases", c.profiles.tokens.k);
    default:
      return fmt::format("{}s", unit_of(set.kind));
  }
}

TokenKind tokens_of(const RunConfig& c) {
  const std::string name = name_of_tokens(c), tokenizer = tokenizer_of(c);
  if (!tokenizer.empty()) return {name, fmt::format("{:x}", open_tokenizer(tokenizer)->hash())};
  if (find_data_set(c.task).kind != DataKind::words) return {name, name};
  // The vocabulary is made of the training text.
  const Fingerprint text = fingerprint_of_data(c);
  return {name, fmt::format("{}: {} bytes with checksum {}, {} % of them", name, text.bytes,
                            text.xxh3, split_of(c)->train)};
}

}  // namespace

Fingerprint fingerprint_of_data(const RunConfig& config) {
  const DataSet& set = find_data_set(config.task);
  if (is_generated(set.kind)) return {};
  std::vector<std::string> paths = paths_of(set, data_place(config));
  std::erase_if(paths, [](const std::string& path) {
    // One that is missing is named as such.
    return std::filesystem::exists(path) && !std::filesystem::is_regular_file(path);
  });
  return fingerprint_of(paths);
}

std::optional<Split> split_of(const RunConfig& config) {
  const DataSet& set = find_data_set(config.task);
  if (is_generated(set.kind)) return {};
  if (!config.split.empty()) return Split::parse(config.split);
  return set.split.empty() ? Split{} : Split::parse(set.split);
}

std::string identity_of_tokens(const RunConfig& config) { return tokens_of(config).identity; }

bool same_tokens(const std::string& stored, const std::string& now) {
  return now == stored || (stored.starts_with("words of ") && now.starts_with(stored + ": "));
}

namespace {

/// Throws ValueError unless the tokens of a run are those that the run in `from` was trained with:
/// what its checkpoint says or, if that is of an earlier version, what its tokenizer is now.
void require_tokens_of(const RunConfig& config, const RunConfig& there, const Json& values,
                       const std::string& from) {
  const TokenKind here = tokens_of(config), others = [&] {
    if (const Json* data = values.find("data")) {
      return TokenKind{name_of_tokens(there), (*data)["tokens"].string()};
    }
    try {
      return tokens_of(there);
    } catch (const Error& e) {
      fail("--from", "what the tokens of {} are cannot be told: {}", from, e.what());
    }
  }();
  const auto text = [&](const TokenKind& kind) {
    return here.name == others.name && kind.name != kind.identity
               ? fmt::format("{} ({})", kind.name, kind.identity)
               : kind.name;
  };
  require(same_tokens(others.identity, here.identity), "--from",
          "the tokens of this run are {}, and those of {} are {}, whose numbers stand for other "
          "things; expected --tokenizer and data as there, or another run",
          text(here), from, text(others));
}

}  // namespace

Started start_from_run(const TrainingRun& run) {
  const RunConfig::Start& start = run.config.start;
  std::string checkpoint = newest_checkpoint(start.from);
  require<IoError>(!checkpoint.empty(), "--from",
                   "{} holds no checkpoint; expected the folder of a trained run", start.from);
  const RunConfig there = make_config(read_toml(start.from + "/config.toml"));
  Json values;
  const auto read_first = [&](const std::string& path) { values = read_values(path); };
  checkpoint = read_checkpoint(start.from, checkpoint, false, read_first);
  require_tokens_of(run.config, there, values, start.from);
  const int64_t offset = position_offset(*run.config.model);
  require(position_offset(*there.model) == offset, "model.position_offset",
          "got {}, and {} in {}; expected the same", offset, position_offset(*there.model),
          start.from);
  const std::unique_ptr<LanguageModel> other = there.model->build(Init{.device = run.device});
  const TensorList state = named_state(*other);
  checkpoint = read_checkpoint(start.from, checkpoint, false, [&](const std::string& path) {
    values = read_parameters(path, state);
  });
  const std::string bad = first_nonfinite(state);
  require(bad.empty(), "--from", "{}: \"{}\" holds NaN or infinity; expected another run",
          checkpoint, bad);
  try {
    std::vector<std::string> heads = start_from(*run.model, *other, offset, start.positions);
    return {values["step"].integer(), std::move(heads)};
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    fail("--from", "{} cannot start from {}, a run of {}: {}", run.config.model_name, start.from,
         there.model_name, e.what());
  }
}

void require_same_model(const Settings& stored, const Settings& asked, const std::string& out) {
  const auto name = [](const Setting* s) {
    const std::string all = s != nullptr && s->value.is_string() ? s->value.string() : "";
    return all.substr(0, all.find(':'));
  };
  const std::string there = name(last_setting(stored, "model.name")),
                    here = name(last_setting(asked, "model.name"));
  require(here.empty() || there.empty() || here == there, "--model",
          "got {}, and {} holds a run of {}; expected the same: leave --model out, or choose "
          "another --out",
          here, out, there);
}

void require_length(const RunConfig& config, const LanguageModel& model) {
  const int64_t longest = max_input_length(model);
  require(config.length <= longest, "length",
          "got {}; {} takes at most {} tokens: choose a shorter --length or a larger model.n_max",
          config.length, config.model_name, longest);
}

void Position::add(double loss) {
  constexpr size_t recent_steps = 100;
  recent.push_back(loss);
  if (recent.size() > recent_steps) recent.pop_front();
}

void Position::see(const Usage& usage) {
  if (usage.total() > peak.total()) peak = usage;
}

double Position::train_bpb() const {
  double sum = 0;
  for (const double loss : recent) sum += loss;
  if (recent.empty()) return std::nan("");
  return unit.value_or(LossUnit{}).bits(sum / static_cast<double>(recent.size()));
}

Members Position::values() const {
  Members values{{"tokens", tokens},
                 {"seconds", seconds},
                 {"train_bpb", train_bpb()},
                 {"recent", Json::Array(recent.begin(), recent.end())},
                 {"peak_bytes", to_members(peak)}};
  if (unit) {
    values.emplace_back("unit", unit->name);
    values.emplace_back("units_per_target", unit->per_target);
  }
  return values;
}

Position Position::read(const Json& values, const std::string& checkpoint) {
  try {
    Position p{.step = values["step"].integer(),
               .tokens = values["tokens"].integer(),
               .seconds = values["seconds"].number(),
               .recent = {},
               .peak = to_usage(values["peak_bytes"]),
               .unit = {}};
    if (values.find("unit") != nullptr) {  // absent in earlier versions
      p.unit = LossUnit{values["unit"].string(), values["units_per_target"].number()};
    }
    for (const Json& loss : values["recent"].array()) p.recent.push_back(loss.number());
    return p;
  } catch (const ValueError& error) {
    fail<IoError>("state", "{}/state.json is not of a run of longspan train: {}", checkpoint,
                  error.what());
  }
}

Members summary(const TrainingRun& run, const Position& at, double valid_bpb) {
  const double speed = at.seconds > 0 ? static_cast<double>(at.tokens) / at.seconds : 0;
  const LossUnit unit = at.unit.value_or(LossUnit{});
  return {{"model", run.config.model_name},
          {"parameters", parameter_count(*run.model)},
          {"steps", at.step},
          {"tokens", at.tokens},
          {"unit", unit.name},
          {"units_per_target", unit.per_target},
          {"train_bpb", at.train_bpb()},
          {"valid_bpb", valid_bpb},
          {"seconds", at.seconds},
          {"tokens_per_second", speed},
          {"peak_bytes", to_members(at.peak)}};
}

void finish(const std::string& out, const Members& figures) {
  std::puts(write_summary(out, figures).c_str());
  std::fflush(stdout);
}

}  // namespace longspan
