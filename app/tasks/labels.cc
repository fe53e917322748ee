#include "app/tasks/labels.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/scope.h"
#include "models/encoder.h"
#include "ops/copy.h"

namespace longspan {
namespace {

/// Source of a generated task.
class GeneratedSource final : public LabelSource {
 public:
  GeneratedSource(const TrainingRun& run, const SampleTask& task)
      : config_(run.config), task_(task.fitted(config_.length, run.model->vocab())) {}

  int64_t size(size_t part) const override {
    return part == 0 ? config_.steps * config_.batch * config_.batches_per_step() : task_->held_out;
  }
  Sample sample(size_t part, int64_t i) const override {
    return task_->sample(
        {.seed = config_.seed, .split = part_names[part], .index = static_cast<uint64_t>(i)});
  }
  Sample training(int64_t row) const override { return sample(0, row); }
  int64_t answers() const override { return task_->shape().scored; }
  int64_t vocabulary() const override { return task_->shape().vocabulary; }
  std::string answers_text() const override {
    return fmt::format("{}, as many as {} asks for", answers(), config_.task);
  }
  std::string vocabulary_text() const override {
    return fmt::format("the tokens of {}, {},", config_.task, task_->tokens());
  }

 private:
  const RunConfig& config_;
  std::unique_ptr<const SampleTask> task_;
};

/// Source of promoter and chromatin.
class FileSource final : public LabelSource {
 public:
  FileSource(const RunConfig& c, const KmerTokens& kmers)
      : config_(c),
        data_(open_labelled(c.of_task->set(), data_place(c), c.split, c.seed)),
        kmers_(kmers) {
    if (!c.tokenizer.empty()) {
      tokenizer_ = open_tokenizer(c.tokenizer);
      return;
    }
    const int64_t tokens = kmers_.count(data_->length());
    require(tokens <= c.length, "length",
            "got {}; {} bases are {} tokens: choose --length {}, or a larger profiles.stride than "
            "{}",
            c.length, data_->length(), tokens, tokens, kmers_.stride);
  }

  int64_t size(size_t part) const override { return data_->size(part); }
  Sample sample(size_t part, int64_t i) const override {
    Sample s = data_->sample(part, i);
    s.tokens = tokenizer_ ? pieces(s.tokens) : kmers_.tokens(s.tokens);
    return s;
  }
  Sample training(int64_t row) const override {
    return sample(0, item_of_row(row, size(0), config_.seed));
  }
  int64_t answers() const override { return data_->answers(); }
  int64_t vocabulary() const override {
    if (!tokenizer_) return kmers_.vocabulary();
    return tokenizer_->vocabulary() + (tokenizer_->special().begin < 0 ? 1 : 0);
  }
  std::string answers_text() const override {
    return fmt::format("{}, as many as {} has", answers(), config_.task);
  }
  std::string vocabulary_text() const override {
    return tokenizer_ ? config_.tokenizer + " and the token before a sequence"
                      : fmt::format("runs of profiles.kmer = {} bases and two more", kmers_.k);
  }

 private:
  /// Returns the tokenizer's begin token and as many pieces as fit.
  std::vector<int32_t> pieces(const std::vector<int32_t>& ids) const {
    std::string letters;
    for (const int32_t id : ids) letters += bases[static_cast<size_t>(id)];
    const int32_t begin = tokenizer_->special().begin;
    std::vector<int32_t> tokens{begin >= 0 ? begin
                                           : static_cast<int32_t>(tokenizer_->vocabulary())};
    for (const int32_t id : tokenizer_->encode(letters)) tokens.push_back(id);
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(config_.length)));
    return tokens;
  }

  const RunConfig& config_;
  std::unique_ptr<const LabelledSequences> data_;
  KmerTokens kmers_;
  std::unique_ptr<const Tokenizer> tokenizer_;
};

std::vector<int32_t> labels_of(const std::vector<Sample>& samples) {
  std::vector<int32_t> labels;
  for (const Sample& s : samples) labels.insert(labels.end(), s.targets.begin(), s.targets.end());
  return labels;
}

}  // namespace

void require_classifier(const RunConfig& c, const LanguageModel& model) {
  if (implements<ClassifiesSequences>(model) != nullptr) return;
  refuse_without<ClassifiesSequences>(
      c, model,
      fmt::format("{} asks for answers about a whole sequence, and {} has no head for them; choose "
                  "an encoder such as bigbird:motif",
                  c.task, c.model_name));
}

void ProfileTask::visit(Fields& v) {
  v.enter("profiles");
  v("kmer", tokens_.k, range::between(1, 8), "bases that a token represents");
  v("stride", tokens_.stride, range::between(1, range::many),
    "bases from the start of a token to that of the next");
  v("positive_weight", positive_weight_, range::not_negative,
    "factor on the training loss of positive answers");
  v.leave();
}

void ProfileTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  refuse_writers(c, model);
  require_classifier(c, model);
}

TaskSizes ProfileTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  const int64_t classes = set().kind == DataKind::promoters ? 1 : 0;
  if (c.tokenizer.empty()) return {.vocabulary = tokens_.vocabulary(), .classes = classes};
  const std::unique_ptr<const Tokenizer> tokenizer = open_tokenizer(c.tokenizer);
  const int64_t begin = tokenizer->special().begin < 0 ? 1 : 0;
  return {.vocabulary = tokenizer->vocabulary() + begin, .classes = classes};
}

std::string ProfileTask::symbols(std::string_view tokenizer) const {
  return tokenizer.empty() ? fmt::format("runs of {} bases", tokens_.k) : "bytes";
}

std::vector<std::string> ProfileTask::function_keys() const { return {"profiles."}; }

std::unique_ptr<TaskData> ProfileTask::open(const TrainingRun& run, bool /*reads*/) const {
  return std::make_unique<LabelData>(run, std::make_unique<FileSource>(run.config, tokens_),
                                     positive_weight_);
}

LanguageModel::Losses ProfileTask::synthetic_loss(const SyntheticStep& step) const {
  return synthetic_label_loss(step, positive_weight_);
}

LanguageModel::Losses synthetic_label_loss(const SyntheticStep& s, double positive_weight) {
  const auto& classifier = need<ClassifiesSequences>(s.model);
  const EncoderInputs in = synthetic_inputs(s, classifier.takes_global_tokens());
  LanguageModel::Losses result;
  result.loss = profile_loss(classifier.class_logits(in, s.pass),
                             synthetic_ids(s.config.batch, classifier.classes(), 1, s.device),
                             positive_weight);
  return result;
}

std::unique_ptr<const LabelSource> generated_labels(const TrainingRun& run,
                                                    const SampleTask& task) {
  return std::make_unique<GeneratedSource>(run, task);
}

LabelData::LabelData(const TrainingRun& run, std::unique_ptr<const LabelSource> source,
                     double positive_weight)
    : run_(run), source_(std::move(source)), positive_weight_(positive_weight) {
  require_classifier(run.config, *run.model);
  const auto* const classifier = implements<ClassifiesSequences>(*run.model);
  require(classifier->classes() == source_->answers(), "model.classes",
          "got {}; expected {}, an answer for each", classifier->classes(),
          source_->answers_text());
  require(run.model->vocab() >= source_->vocabulary(), "model.vocab", "got {}; {} are {}",
          run.model->vocab(), source_->vocabulary_text(), source_->vocabulary());
  const DataSet& set = run.config.of_task->set();
  for (size_t part = 0; part < 3; ++part) {
    const int64_t expected = set.counts[part], found = source_->size(part);
    if (expected >= 0 && found != expected) {
      warnings_.push_back(fmt::format("{}: the {} part has {} samples; expected {}", set.id,
                                      part_names[part], found, expected));
    }
  }
}

void LabelData::prepare() {
  require(source_->size(0) > 0, "split", "the training part of {} has no samples",
          data_name(run_.config));
  for (size_t part = 0; part < 3; ++part) {
    if (source_->size(part) > 0) source_->sample(part, source_->size(part) - 1);
  }
}

Tensor LabelData::logits(const std::vector<Sample>& samples, Pass pass) const {
  const auto& classifier = need<ClassifiesSequences>(*run_.model);
  return classifier.class_logits(inputs_of(samples, classifier.takes_global_tokens(), run_.device),
                                 pass);
}

TaskData::Forward LabelData::forward(int64_t i, const SegmentMemory& /*memory*/, Pass pass) const {
  const int64_t batch = run_.config.batch;
  std::vector<Sample> samples;
  const int64_t first = run_.samples_before(i);
  for (int64_t row = first; row < first + batch; ++row) {
    const Phase phase("data");
    samples.push_back(source_->training(row));
  }
  const Tensor labels = Tensor::from(labels_of(samples), {batch, source_->answers()}, run_.device);
  Forward f;
  f.losses.loss = profile_loss(logits(samples, pass), labels, positive_weight_);
  for (const Sample& s : samples) f.tokens += static_cast<int64_t>(s.tokens.size());
  f.counted = batch;
  return f;
}

LabelScores LabelData::scores(const std::string& part) const {
  const NoGrad off;
  const size_t which = part_index(part);
  const int64_t answers = source_->answers();
  const EvaluatedItems items(size(part), run_.config.length);
  const auto all = static_cast<double>(items.size() * answers);
  LabelScores s;
  RocAreas areas(answers);
  BinaryCounts counts;
  const auto add = [&](const std::vector<Sample>& samples) {
    const std::vector<double> scores =
        cast(logits(samples, Pass{}), DType::f64).to_vector<double>();
    const std::vector<int32_t> labels = labels_of(samples);
    for (size_t k = 0; k < scores.size(); ++k) {
      const double z = labels[k] == 1 ? -scores[k] : scores[k];
      s.nats += (std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)))) / all;
      counts.add(scores[k] > 0 ? 1 : 0, labels[k]);
    }
    areas.add(scores, labels);
  };
  visit_alike(
      items.size(), run_.config.batch, [&](int64_t i) { return source_->sample(which, items[i]); },
      [](const Sample& sample) { return sample.tokens.size(); }, add);
  s.accuracy = counts.accuracy();
  s.f1 = counts.overlap().f1();
  const std::vector<std::optional<double>> found = areas.areas();
  s.auc = median_auc(found);
  if (answers == 919) {  // in the order of the published data
    struct Kind {
      const char* name;
      size_t begin, end;
    };
    for (const Kind& k : {Kind{"dhs", 0, 125}, Kind{"tf", 125, 815}, Kind{"hm", 815, 919}}) {
      s.kinds.emplace_back(k.name, median_auc(std::span(found).subspan(k.begin, k.end - k.begin)));
    }
  }
  return s;
}

TaskData::Evaluation LabelData::evaluate(const std::string& part) const {
  const LabelScores s = scores(part);
  const double accuracy = 100 * s.accuracy, median = 100 * s.auc.median, f1 = 100 * s.f1;
  Report r{{fmt::format("{:.2f} % of answers right, median area under the curve {:.2f} % of {}",
                        accuracy, median, s.auc.answers)},
           {{"accuracy", accuracy}, {"auc", median}}};
  if (s.auc.answers + s.auc.skipped == 1) {
    r.lines.push_back(fmt::format("F1 {:.2f} %", f1));
    r.figures.emplace_back("f1", f1);
  }
  for (const auto& [kind, auc] : s.kinds) {
    r.lines.push_back(fmt::format("{}: median area {:.2f} % of {}, {} without both answers", kind,
                                  100 * auc.median, auc.answers, auc.skipped));
    r.figures.emplace_back("auc_" + kind, 100 * auc.median);
  }
  return {bits_of(part, s), r};
}

double LabelData::bits(const std::string& part) const { return bits_of(part, scores(part)); }

double LabelData::bits_of(const std::string& part, const LabelScores& s) const {
  return size(part) > 0 ? s.nats / std::log(2.0) : std::nan("");
}

std::vector<int32_t> LabelData::first_tokens(int64_t count) const {
  if (source_->size(1) == 0) return {};
  std::vector<int32_t> tokens = source_->sample(1, 0).tokens;
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

}  // namespace longspan
