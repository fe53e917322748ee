#include "examples/longspan/run.h"

#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "core/parallel.h"
#include "models/evaluate.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan {
namespace {

/// Rows of a model's position table before the first position; none where it has no such field.
int64_t position_offset(Blueprint& model) {
  const Json fields = to_json(model);
  const Json* offset = fields.find("position_offset");
  return offset == nullptr ? 0 : offset->integer();
}

}  // namespace

TrainingRun::TrainingRun(RunConfig c, std::string folder)
    : config(std::move(c)), out(std::move(folder)) {
  if (config.threads > 0) set_num_threads(static_cast<int>(config.threads));
  device = parse_device(config.device);
  if (config.memory_limit > 0) set_memory_limit(device, config.memory_limit);
  model = config.model->build(Init{generator().fork("init"), device});
  require(config.length <= model->max_length(), "length",
          "got {}; {} takes at most {} tokens: choose a shorter --length or a larger model.n_max",
          config.length, config.model_name, model->max_length());
  require(model->objective() != Objective::sequence, "task",
          "{} maps a sequence to another and the task {} has only one; choose a decoder or an "
          "encoder",
          config.model_name, config.task);
  const bool masked = model->objective() == Objective::masked_token;
  require(
      !masked || model->mask_token() >= 256 || config.task != "bytes" || !config.tokenizer.empty(),
      "model.vocab", "got {}; expected 257 or more, the bytes and a token that hides them",
      model->vocab());
  require(model->vocab() >= 256 || config.task != "bytes", "model.vocab",
          "got {}; expected 256 or more, one for each byte", model->vocab());
}

Corpus TrainingRun::corpus() const {
  Corpus corpus = open_corpus(config.task, data_place(config), {config.split, config.tokenizer});
  const bool masked = model->objective() == Objective::masked_token;
  const int64_t extra = masked && batches(corpus).mask_token >= corpus.vocabulary ? 1 : 0;
  require(model->vocab() >= corpus.vocabulary + extra, "model.vocab",
          "got {}; {} has {} tokens{}: expected {} or more", model->vocab(), corpus.id,
          corpus.vocabulary, extra > 0 ? " and one that hides them" : "",
          corpus.vocabulary + extra);
  return corpus;
}

BatchOptions TrainingRun::batches(const Corpus& corpus) const {
  BatchOptions options{.objective = model->objective(), .seed = config.seed, .device = device};
  if (options.objective != Objective::masked_token) return options;
  const int32_t mask = corpus.tokenizer ? corpus.tokenizer->special().mask : -1;
  options.mask_token = mask >= 0 ? mask : std::max(model->mask_token(), corpus.vocabulary);
  if (config.whole_words) options.words = corpus.words;
  return options;
}

int64_t start_from_run(const TrainingRun& run) {
  const RunConfig::Start& start = run.config.start;
  const std::string checkpoint = newest_checkpoint(start.from);
  require<IoError>(!checkpoint.empty(), "--from",
                   "{} holds no checkpoint; expected the folder of a trained run", start.from);
  const RunConfig there = make_config(read_toml(start.from + "/config.toml"));
  const int64_t offset = position_offset(*run.config.model);
  require(position_offset(*there.model) == offset, "model.position_offset",
          "got {}, and {} in {}; expected the same", offset, position_offset(*there.model),
          start.from);
  const std::unique_ptr<LanguageModel> other = there.model->build(Init{.device = run.device});
  const Json values = read_parameters(checkpoint, named_parameters(*other));
  start_from(*run.model, *other, offset, start.positions);
  return values["step"].integer();
}

double bits_per_byte(const TrainingRun& run, const Corpus& corpus, const Part& part) {
  const int64_t together = std::max<int64_t>(1, 4096 / run.config.length);
  const EvaluationSegments segments(part, together, run.config.length, run.batches(corpus));
  Score total;
  for (int64_t i = 0; i < segments.size(); ++i) {
    const Batch batch = segments[i];
    total += score(*run.model, batch.tokens, batch.targets);
  }
  if (total.count == 0) return std::nan("");
  const bool all = run.model->objective() == Objective::next_token && part.symbols > 0;
  const auto per = static_cast<double>(all ? part.symbols : total.count);
  return total.bits() * static_cast<double>(total.count) / per;
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
  return recent.empty() ? std::nan("") : bits(sum / static_cast<double>(recent.size()));
}

Members Position::values() const {
  return {{"tokens", tokens},
          {"seconds", seconds},
          {"train_bpb", train_bpb()},
          {"recent", Json::Array(recent.begin(), recent.end())},
          {"peak_bytes", to_members(peak)}};
}

Position Position::read(const Json& values, const std::string& checkpoint) {
  try {
    Position p{.step = values["step"].integer(),
               .tokens = values["tokens"].integer(),
               .seconds = values["seconds"].number(),
               .recent = {},
               .peak = to_usage(values["peak_bytes"])};
    for (const Json& loss : values["recent"].array()) p.recent.push_back(loss.number());
    return p;
  } catch (const ValueError& error) {
    fail<IoError>("state", "{}/state.json is not of a run of longspan train: {}", checkpoint,
                  error.what());
  }
}

Members summary(const TrainingRun& run, const Position& at, double valid_bpb) {
  const double speed = at.seconds > 0 ? static_cast<double>(at.tokens) / at.seconds : 0;
  return {{"model", run.config.model_name},
          {"parameters", parameter_count(*run.model)},
          {"steps", at.step},
          {"tokens", at.tokens},
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
