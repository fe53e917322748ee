#include "models/evaluate.h"

#include <algorithm>
#include <vector>

#include "autograd/mode.h"
#include "core/ranks/packed.h"
#include "models/scoring.h"
#include "ops/copy.h"
#include "ops/reduce.h"

namespace longspan {
namespace {

/// Predictions begin + 1 to begin + length; only the last `counted` count.
struct ScoredWindow {
  int64_t begin, length, counted;
};

/// The pass of scoring: with DividedScoring, of this process's rows.
Pass scoring_pass() {
  Pass pass;
  pass.split = DividedScoring::split();
  return pass;
}

/// Returns the mean loss of all targets, of which processes that split a sequence have shares.
double all_shares(const Tensor& loss) {
  const SequenceSplit* const split = DividedScoring::split();
  return split == nullptr ? loss.item()
                          : sum_over(split->group(), loss.item(), "the score of a batch");
}

/// Scores these targets with the mean loss that losses() computes.
Score score_of(const Tensor& targets, auto losses) {
  const NoGrad off;
  const Scoring exact;
  Score s{.count = count_targets(targets)};
  if (s.count > 0) s.nats = all_shares(losses().loss) * static_cast<double>(s.count);
  return s;
}

Score score_spans(const LanguageModel& model, const Tensor& text,
                  const std::vector<ScoredWindow>& spans, int64_t batch) {
  require_integer("score", text, "text");
  require_rank_is("score", text, 1, "text");
  require(batch >= 1, "score", "batch is {}; expected 1 or more", batch);
  const std::vector<int64_t> ids = cast(text, DType::i64).to_vector<int64_t>();
  Score total;
  for (size_t at = 0; at < spans.size();) {
    const int64_t length = spans[at].length;
    std::vector<int64_t> tokens, targets;
    int64_t rows = 0;
    for (; at < spans.size() && rows < batch && spans[at].length == length; ++at, ++rows) {
      const ScoredWindow& s = spans[at];
      for (int64_t i = 0; i < length; ++i) {
        const auto place = static_cast<size_t>(s.begin + i);
        tokens.push_back(ids[place]);
        targets.push_back(i >= length - s.counted ? ids[place + 1] : ignored_target);
      }
    }
    total += score(model, Tensor::from(tokens, {rows, length}, model.device()),
                   Tensor::from(targets, {rows, length}, model.device()));
  }
  return total;
}

}  // namespace

int64_t count_targets(const Tensor& targets) {
  const std::vector<int64_t> y = cast(targets, DType::i64).to_vector<int64_t>();
  return std::ssize(y) - std::count(y.begin(), y.end(), ignored_target);
}

Answers count_right(const Tensor& logits, const Tensor& targets) {
  const std::vector<int64_t> said = argmax(logits, -1).to_vector<int64_t>();
  const std::vector<int64_t> wanted = cast(targets, DType::i64).to_vector<int64_t>();
  require<ShapeError>(said.size() == wanted.size(), "answers", "{} logits for {} targets",
                      said.size(), wanted.size());
  Answers all;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == ignored_target) continue;
    ++all.counted;
    all.right += said[i] == wanted[i] ? 1 : 0;
  }
  return all;
}

Score score(const LanguageModel& model, const Tensor& tokens, const Tensor& targets) {
  return score_of(targets, [&] {
    return model.loss(tokens, targets, scoring_memory(model, tokens.dim(0)), scoring_pass());
  });
}

SegmentMemory scoring_memory(const LanguageModel& model, int64_t batch) {
  return DividedScoring::split() != nullptr ? empty_memory(model, batch)
                                            : evaluation_memory(model, batch);
}

void ScoreSum::add(const std::function<Score()>& next) {
  const DividedScoring* const divided = DividedScoring::current();
  const int64_t i = count_++;
  if (divided == nullptr || i % divided->groups() == divided->group()) own_.push_back(next());
}

Score ScoreSum::total() {
  const DividedScoring* const divided = DividedScoring::current();
  Score sum;
  if (divided == nullptr) {
    for (const Score& s : own_) sum += s;
    return sum;
  }
  Packer mine;
  for (const Score& s : own_) mine.put(s);
  const std::vector<std::string> all = divided->ranks().gather(mine.taken(), "scores");
  std::vector<Unpacker> of_group;
  for (int g = 0; g < divided->groups(); ++g) {
    of_group.emplace_back(all[static_cast<size_t>(g * divided->together())]);
  }
  for (int64_t i = 0; i < count_; ++i) {
    sum += of_group[static_cast<size_t>(i % divided->groups())].value<Score>();
  }
  return sum;
}

Score score(const LanguageModel& model, const Tensor& tokens, const Tensor& targets,
            SegmentMemory& memory) {
  const NoGrad off;
  const Scoring exact;
  auto losses = model.loss(tokens, targets, memory, scoring_pass());
  memory = std::move(losses.memory);
  Score s{.count = count_targets(targets)};
  if (s.count > 0) s.nats = all_shares(losses.loss) * static_cast<double>(s.count);
  return s;
}

Score score(const LanguageModel& model, const SourceTokens& source, const Tensor& tokens,
            const Tensor& targets) {
  const auto& writer = need<WritesSequences>(model);
  return score_of(targets,
                  [&] { return writer.sequence_loss(source, tokens, targets, scoring_pass()); });
}

Score score_segments(const LanguageModel& model, const Tensor& text, int64_t length,
                     int64_t batch) {
  require(length >= 1, "score", "length is {}; expected 1 or more", length);
  const int64_t n = text.numel() - 1;
  std::vector<ScoredWindow> spans;
  for (int64_t i = 0; i < n; i += length) {
    const int64_t here = std::min(length, n - i);
    spans.push_back({i, here, here});
  }
  return score_spans(model, text, spans, batch);
}

Score score_sliding(const LanguageModel& model, const Tensor& text, int64_t length, int64_t stride,
                    int64_t batch) {
  require(length >= 1, "score", "length is {}; expected 1 or more", length);
  require(stride >= 1 && stride <= length, "score", "stride is {}; expected 1 to length = {}",
          stride, length);
  const int64_t n = text.numel() - 1;
  std::vector<ScoredWindow> spans;
  for (int64_t done = 0; done < n;) {
    const int64_t counted = std::min(done == 0 ? length : stride, n - done);
    const int64_t here = std::min(length, done + counted);
    spans.push_back({done + counted - here, here, counted});
    done += counted;
  }
  return score_spans(model, text, spans, batch);
}

}  // namespace longspan
