#include "app/run.h"

#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

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
  const bool sentences = model->as_document_model() != nullptr;
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
  require(!hides_bytes || model->mask_token() >= 256, "model.mask_id",
          "got {}, which is a byte; expected 256 or more, of which no text has any",
          model->mask_token());
  require(model->vocab() >= 256 || config.task != "bytes", "model.vocab",
          "got {}; expected 256 or more, one for each byte", model->vocab());
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
  std::string identity;  // equal strings mean equal ids
};

TokenKind tokens_of(const RunConfig& c) {
  const DataSet& set = find_data_set(c.task);
  const std::string tokenizer = set.kind == DataKind::chars ? "char27" : c.tokenizer;
  if (!tokenizer.empty() && tokenizer != "bytes") {
    return {tokenizer, fmt::format("{:x}", open_tokenizer(tokenizer)->hash())};
  }
  const auto plain = [](const std::string& name) { return TokenKind{name, name}; };
  switch (set.kind) {
    case DataKind::bytes:
    case DataKind::documents:
    case DataKind::choices:
    case DataKind::trivia:
      return plain("bytes");
    case DataKind::words:
      return plain(fmt::format("words of {}", set.id));
    case DataKind::generated_labels:
    case DataKind::generated_tokens:
    case DataKind::generated_span:
    case DataKind::generated_documents:
      return plain(c.generated->tokens());
    case DataKind::promoters:
    case DataKind::profiles:
      if (!c.tokenizer.empty()) return plain("bytes");
      return plain(fmt::format("runs of {} bases", c.profiles.tokens.k));
    default:
      return plain(fmt::format("{}s", unit_of(set.kind)));
  }
}

}  // namespace

std::string identity_of_tokens(const RunConfig& config) { return tokens_of(config).identity; }

Started start_from_run(const TrainingRun& run) {
  const RunConfig::Start& start = run.config.start;
  const std::string checkpoint = newest_checkpoint(start.from);
  require<IoError>(!checkpoint.empty(), "--from",
                   "{} holds no checkpoint; expected the folder of a trained run", start.from);
  const RunConfig there = make_config(read_toml(start.from + "/config.toml"));
  const TokenKind here = tokens_of(run.config), others = [&] {
    try {
      return tokens_of(there);
    } catch (const Error& e) {
      fail("--from", "what the tokens of {} are cannot be told: {}", start.from, e.what());
    }
  }();
  require(here.identity == others.identity, "--from",
          "the tokens of this run are {}, and those of {} are {}, whose numbers stand for other "
          "things; expected --tokenizer and data as there, or another run",
          here.name, start.from, others.name);
  const int64_t offset = position_offset(*run.config.model);
  require(position_offset(*there.model) == offset, "model.position_offset",
          "got {}, and {} in {}; expected the same", offset, position_offset(*there.model),
          start.from);
  const std::unique_ptr<LanguageModel> other = there.model->build(Init{.device = run.device});
  const TensorList state = named_state(*other);
  const Json values = read_parameters(checkpoint, state);
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
  require(config.length <= model.max_source_length(), "length",
          "got {}; {} takes at most {} tokens: choose a shorter --length or a larger model.n_max",
          config.length, config.model_name, model.max_source_length());
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
