#include <cmath>

#include "autograd/mode.h"
#include "core/error.h"
#include "examples/longspan/material.h"
#include "ops/copy.h"
#include "train/metrics.h"

namespace longspan {
namespace {

const Encoder& encoder_of(const TrainingRun& run, const MotifTask& task) {
  const auto* encoder = dynamic_cast<const Encoder*>(run.model.get());
  require(encoder != nullptr, "task",
          "{} asks for answers about a whole sequence, and {} has no "
          "head for them; choose an encoder such as bigbird:motif",
          run.config.task, run.config.model_name);
  require(encoder->encoder_config().classes == task.pairs, "model.classes",
          "got {}; expected motifs.pairs = {}, an answer for each",
          encoder->encoder_config().classes, task.pairs);
  require(encoder->vocab() >= task.vocabulary(), "model.vocab",
          "got {}; runs of motifs.kmer = {} bases and the token before them are {}",
          encoder->vocab(), task.kmer, task.vocabulary());
  return *encoder;
}

MotifTask task_of(const RunConfig& c) {
  MotifTask task = c.motifs.task;
  task.length = c.length + task.kmer - 2;  // so that there are `length` tokens
  return task;
}

}  // namespace

LabelMaterial::LabelMaterial(const TrainingRun& run)
    : run_(run), task_(task_of(run.config)), encoder_(encoder_of(run, task_)) {}

int64_t LabelMaterial::size(const std::string& part) const {
  const RunConfig& c = run_.config;
  return part_index(part) == 0 ? c.steps * c.batch * c.accumulate : c.motifs.held_out;
}

LabelMaterial::Labelled LabelMaterial::samples(const std::string& part, int64_t first,
                                               int64_t count) const {
  std::vector<int32_t> tokens, labels;
  for (int64_t i = first; i < first + count; ++i) {
    const LabelledSample s =
        task_.sample({.seed = run_.config.seed, .split = part, .index = static_cast<uint64_t>(i)});
    tokens.insert(tokens.end(), s.tokens.begin(), s.tokens.end());
    labels.insert(labels.end(), s.labels.begin(), s.labels.end());
  }
  return {Tensor::from(tokens, {count, task_.tokens()}, run_.device),
          Tensor::from(labels, {count, task_.pairs}, run_.device)};
}

Tensor LabelMaterial::logits(const Tensor& tokens, Pass pass) const {
  return encoder_.classify(encoder_.forward({.tokens = tokens}, pass), pass);
}

Material::Forward LabelMaterial::forward(int64_t i, Pass pass) const {
  const int64_t batch = run_.config.batch;
  const Labelled rows = samples("train", i * batch, batch);
  Forward f;
  f.losses.loss =
      profile_loss(logits(rows.tokens, pass), rows.labels, run_.config.motifs.positive_weight);
  f.tokens = rows.tokens.numel();
  return f;
}

LabelScores LabelMaterial::scores(const std::string& part) const {
  const NoGrad off;
  std::vector<double> all;
  std::vector<int32_t> labels, answers;
  for (int64_t i = 0; i < size(part); i += run_.config.batch) {
    const Labelled rows = samples(part, i, std::min(run_.config.batch, size(part) - i));
    for (const double z : cast(logits(rows.tokens, Pass{}), DType::f64).to_vector<double>()) {
      all.push_back(z);
      answers.push_back(z > 0 ? 1 : 0);
    }
    for (const int32_t y : rows.labels.to_vector<int32_t>()) labels.push_back(y);
  }
  LabelScores s;
  for (size_t i = 0; i < all.size(); ++i) {
    const double z = labels[i] == 1 ? -all[i] : all[i];
    s.nats += (std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)))) / double(all.size());
  }
  s.accuracy = accuracy(answers, labels);
  s.auc = median_auc(all, labels, task_.pairs);
  return s;
}

double LabelMaterial::bits(const std::string& part) const {
  return size(part) > 0 ? scores(part).nats / std::log(2.0) : std::nan("");
}

std::vector<int32_t> LabelMaterial::first_tokens(int64_t count) const {
  std::vector<int32_t> tokens = samples("valid", 0, 1).tokens.to_vector<int32_t>();
  tokens.resize(static_cast<size_t>(std::min<int64_t>(count, task_.tokens())));
  return tokens;
}

}  // namespace longspan
