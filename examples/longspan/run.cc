#include "examples/longspan/run.h"

#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "core/parallel.h"
#include "models/evaluate.h"
#include "train/log.h"

namespace longspan {

Run::Run(RunConfig c, std::string folder) : config(std::move(c)), out(std::move(folder)) {
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
  require(!masked || model->mask_token() >= 256, "model.vocab",
          "got {}; expected 257 or more, the bytes and a token that hides them", model->vocab());
  require(model->vocab() >= 256, "model.vocab", "got {}; expected 256 or more, one for each byte",
          model->vocab());
}

ByteCorpus Run::corpus() const {
  return ByteCorpus::open(data_path(config), Split::parse(config.split));
}

BatchOptions Run::batches() const {
  BatchOptions options{.objective = model->objective(), .seed = config.seed, .device = device};
  if (options.objective == Objective::masked_token) options.mask_token = model->mask_token();
  return options;
}

double bits_per_byte(const Run& run, const BytePart& part) {
  const int64_t together = std::max<int64_t>(1, 4096 / run.config.length);
  const EvaluationSegments segments(part, together, run.config.length, run.batches());
  Score total;
  for (int64_t i = 0; i < segments.size(); ++i) {
    const Batch batch = segments[i];
    total += score(*run.model, batch.tokens, batch.targets);
  }
  return total.count > 0 ? total.bits() : std::nan("");
}

void finish(const std::string& out, const Summary& s) {
  const double speed = s.seconds > 0 ? static_cast<double>(s.tokens) / s.seconds : 0;
  const std::string line = write_summary(out, {{"model", s.model},
                                               {"parameters", s.parameters},
                                               {"steps", s.steps},
                                               {"tokens", s.tokens},
                                               {"train_bpb", s.train_bpb},
                                               {"valid_bpb", s.valid_bpb},
                                               {"seconds", s.seconds},
                                               {"tokens_per_second", speed},
                                               {"peak_bytes", to_members(s.peak)}});
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace longspan
