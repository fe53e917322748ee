#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/mode.h"
#include "models/generate.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kBeamSearch = "beam_search";
constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Hypothesis {
  std::vector<int64_t> tokens;
  double score = kNever;  // log-likelihood while running, score after the end
};

struct Candidate {
  size_t beam;
  int64_t token;
  double score;
};

/// Sets the scores of all tokens that would repeat an n-gram of prompt and continuation to kNever.
void forbid_repeats(const std::vector<int64_t>& text, int64_t n, double* scores) {
  const auto size = static_cast<int64_t>(text.size());
  if (n < 1 || size < n - 1) return;
  const auto last = text.end() - (n - 1);
  for (int64_t i = 0; i + n <= size; ++i) {
    if (std::equal(last, text.end(), text.begin() + i)) {
      scores[text[static_cast<size_t>(i + n - 1)]] = kNever;
    }
  }
}

/// Converts the logits of a row to log-probabilities in place.
void normalise(double* row, int64_t vocab) {
  const double largest = *std::max_element(row, row + vocab);
  require(std::isfinite(largest), kBeamSearch, "the largest logit is {}; expected a number",
          largest);
  double sum = 0;
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - largest);
  require(!std::isnan(sum), kBeamSearch, "a logit is nan; expected numbers");
  const double log_sum = std::log(sum);
  for (int64_t v = 0; v < vocab; ++v) row[v] = row[v] - largest - log_sum;
}

/// The beams of one prompt.
class Sample {
 public:
  /// `read`: tokens of the prompt that the model reads at once, before the first step().
  Sample(const BeamSearch& search, std::vector<int64_t> prompt, size_t read, int64_t count)
      : search_(search),
        prompt_(std::move(prompt)),
        read_(read),
        count_(count),
        running_{Hypothesis{{}, 0}} {}

  bool done() const { return done_; }
  /// The token that running beam i reads next.
  int64_t next(size_t i) const {
    return running_[i].tokens.empty() ? prompt_[read_ - 1] : running_[i].tokens.back();
  }
  const std::vector<Hypothesis>& ended() const { return ended_; }

  /// Takes the logits of the running beams, [beams, vocab]. Returns for each new beam the index of
  /// the beam that it continues.
  std::vector<size_t> step(double* logits, int64_t vocab) {
    if (read_ < prompt_.size()) {
      ++read_;
      return {0};
    }
    const std::vector<Candidate> candidates = best(logits, vocab);
    std::vector<Hypothesis> next;
    std::vector<size_t> from;
    const auto beams = static_cast<size_t>(search_.beams);
    for (size_t rank = 0; rank < candidates.size(); ++rank) {
      const Candidate& c = candidates[rank];
      Hypothesis h{running_[c.beam].tokens, c.score};
      h.tokens.push_back(c.token);
      const bool last = static_cast<int64_t>(h.tokens.size()) == count_;
      if (c.token == search_.end || last) {
        if (rank < beams) end(std::move(h));
      } else if (next.size() < beams) {
        next.push_back(std::move(h));
        from.push_back(c.beam);
      }
    }
    running_ = std::move(next);
    done_ = running_.empty() || nothing_better();
    return from;
  }

 private:
  /// Returns the likeliest continuations, twice as many as beams, so that enough remain if the
  /// first all end.
  std::vector<Candidate> best(double* logits, int64_t vocab) const {
    std::vector<Candidate> all;
    for (size_t b = 0; b < running_.size(); ++b) {
      double* row = logits + static_cast<int64_t>(b) * vocab;
      std::vector<int64_t> text = prompt_;
      text.insert(text.end(), running_[b].tokens.begin(), running_[b].tokens.end());
      const bool of_logits = search_.beams == 1;  // as in transformers
      if (of_logits) penalise_repeats(text, search_.repetition_penalty, {row, row + vocab});
      normalise(row, vocab);
      if (!of_logits) penalise_repeats(text, search_.repetition_penalty, {row, row + vocab});
      forbid_repeats(text, search_.no_repeat_ngram, row);
      const auto made = static_cast<int64_t>(running_[b].tokens.size());
      if (search_.end >= 0 && made < search_.min_count) row[search_.end] = kNever;
      if (search_.force_begin >= 0 && made == 0) {
        std::fill(row, row + vocab, kNever);
        row[search_.force_begin] = 0;
      }
      if (search_.force_end && made + 1 == count_) {
        std::fill(row, row + vocab, kNever);
        row[search_.end] = 0;
      }
      for (int64_t v = 0; v < vocab; ++v) {
        if (row[v] > kNever) all.push_back({b, v, running_[b].score + row[v]});
      }
    }
    const auto likelier = [](const Candidate& a, const Candidate& b) {
      if (a.score != b.score) return a.score > b.score;
      return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
    };
    const size_t kept = std::min(all.size(), 2 * static_cast<size_t>(search_.beams));
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end(),
                      likelier);
    all.resize(kept);
    return all;
  }

  double scored(double log_likelihood, size_t tokens) const {
    const auto n = static_cast<double>(tokens);
    const double length = search_.divisor == LengthDivisor::wu2016 ? (5 + n) / 6 : n;
    return log_likelihood / std::pow(length, search_.length_penalty);
  }

  void end(Hypothesis h) {
    h.score = scored(h.score, h.tokens.size());
    const auto better = [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; };
    ended_.insert(std::upper_bound(ended_.begin(), ended_.end(), h, better), std::move(h));
    if (static_cast<int64_t>(ended_.size()) > search_.beams) ended_.pop_back();
  }

  bool nothing_better() const {
    if (static_cast<int64_t>(ended_.size()) < search_.beams) return false;
    if (search_.early_stopping == EarlyStopping::true_ || search_.beams == 1) return true;
    const Hypothesis& first = running_.front();
    // Log-likelihoods fall with each token; above a penalty of 0, a longer text is divided by more.
    const bool longest =
        search_.early_stopping == EarlyStopping::never && search_.length_penalty > 0;
    const size_t at = longest ? static_cast<size_t>(count_) : first.tokens.size();
    return scored(first.score, at) <= ended_.back().score;
  }

  const BeamSearch& search_;
  std::vector<int64_t> prompt_;
  size_t read_;
  int64_t count_;
  std::vector<Hypothesis> running_, ended_;
  bool done_ = false;
};

/// Throws if a search cannot be made after prompts of at most `longest` tokens.
void require_consistent(const LanguageModel& model, int64_t longest, int64_t count,
                        const BeamSearch& s) {
  require(s.beams >= 1, kBeamSearch, "beams is {}; expected 1 or more", s.beams);
  require(std::isfinite(s.length_penalty), kBeamSearch, "length_penalty is {}; expected a number",
          s.length_penalty);
  require(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty), kBeamSearch,
          "repetition_penalty is {}; expected a number above 0", s.repetition_penalty);
  require(s.force_begin >= -1 && s.force_begin < model.vocab(), kBeamSearch,
          "force_begin is {}; expected a token below {}, or -1: any", s.force_begin, model.vocab());
  require(s.no_repeat_ngram >= 0, kBeamSearch, "no_repeat_ngram is {}; expected 0 (free) or more",
          s.no_repeat_ngram);
  require(s.end >= -1 && s.end < model.vocab(), kBeamSearch,
          "end is {}; expected a token below {}, or -1: there is none", s.end, model.vocab());
  require(s.end >= 0 || !s.force_end, kBeamSearch,
          "force_end is set and there is no end; expected the token of it");
  require(count >= 1, kBeamSearch, "count is {}; expected 1 or more", count);
  require(s.min_count >= 0 && s.min_count < count, kBeamSearch,
          "min_count is {}; expected 0 or more, and less than count = {}", s.min_count, count);
  require(longest - 1 <= model.max_length() - count, kBeamSearch,
          "a prompt of {} and {} tokens after it are more than the {} that the model can read",
          longest, count, model.max_length());
}

Beams collect(const std::vector<Sample>& samples, int64_t count, const BeamSearch& search) {
  const auto batch = static_cast<int64_t>(samples.size());
  std::vector<int64_t> tokens, lengths;
  std::vector<double> scores;
  for (const Sample& sample : samples) {
    for (size_t i = 0; i < static_cast<size_t>(search.beams); ++i) {
      const Hypothesis h = i < sample.ended().size() ? sample.ended()[i] : Hypothesis{};
      lengths.push_back(static_cast<int64_t>(h.tokens.size()));
      scores.push_back(h.score);
      tokens.insert(tokens.end(), h.tokens.begin(), h.tokens.end());
      const int64_t fill = std::max<int64_t>(search.end, 0);
      tokens.insert(tokens.end(), static_cast<size_t>(count) - h.tokens.size(), fill);
    }
  }
  return {Tensor::from(tokens, {batch, search.beams, count}),
          Tensor::from(lengths, {batch, search.beams}),
          Tensor::from(scores, {batch, search.beams})};
}

/// Searches from samples that all read `fresh` first.
Beams search_from(const LanguageModel& model, std::vector<Sample> samples, Tensor fresh,
                  DecodeState& state, int64_t count, const BeamSearch& search) {
  const auto& decoder = need<Decodes>(model);
  const int64_t batch = std::ssize(samples);
  // The rows of a sample are contiguous in the model's batch: one for each sample at first, then
  // `beams`, the first of which are the running beams.
  int64_t width = 1;
  while (true) {
    const Tensor logits = cast(decoder.decode(fresh, state), DType::f64);
    const int64_t vocab = logits.dim(1);
    std::vector<double> values = logits.to_vector<double>();
    std::vector<int64_t> rows, tokens;
    bool all_done = true;
    for (int64_t b = 0; b < batch; ++b) {
      Sample& sample = samples[static_cast<size_t>(b)];
      std::vector<size_t> from;
      if (!sample.done()) from = sample.step(values.data() + b * width * vocab, vocab);
      all_done = all_done && sample.done();
      for (size_t i = 0; i < static_cast<size_t>(search.beams); ++i) {
        const bool live = i < from.size() && !sample.done();  // otherwise any row works
        rows.push_back(b * width + (live ? static_cast<int64_t>(from[i]) : 0));
        tokens.push_back(live ? sample.next(i) : 0);
      }
    }
    if (all_done) return collect(samples, count, search);
    const Tensor order = Tensor::from(rows, {batch * search.beams}, model.device());
    state.take_rows(order, width == search.beams);
    width = search.beams;
    fresh = Tensor::from(tokens, {batch * search.beams, 1}, model.device());
  }
}

}  // namespace

Beams beam_search(const LanguageModel& model, const Tensor& prompt,
                  std::unique_ptr<DecodeState> state, int64_t count, const BeamSearch& search) {
  require_integer(kBeamSearch, prompt, "prompt");
  require_rank_is(kBeamSearch, prompt, 2, "prompt");
  require<ShapeError>(prompt.dim(1) >= 1, kBeamSearch,
                      "the prompt is empty; begin with at least one token");
  require_consistent(model, prompt.dim(1), count, search);
  const NoGrad off;
  const int64_t batch = prompt.dim(0), n = prompt.dim(1);
  const std::vector<int64_t> words = cast(prompt, DType::i64).to_vector<int64_t>();
  std::vector<Sample> samples;
  for (int64_t b = 0; b < batch; ++b) {
    samples.emplace_back(search,
                         std::vector<int64_t>(words.begin() + b * n, words.begin() + (b + 1) * n),
                         static_cast<size_t>(n), count);
  }
  return search_from(model, std::move(samples), cast(prompt, DType::i64), *state, count, search);
}

Beams beam_search(const LanguageModel& model, std::span<const std::vector<int32_t>> prompts,
                  int64_t count, const BeamSearch& search) {
  require<ShapeError>(!prompts.empty(), kBeamSearch, "there are no prompts");
  size_t shortest = SIZE_MAX, longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    require<ShapeError>(!prompt.empty(), kBeamSearch,
                        "a prompt is empty; begin with at least one token");
    shortest = std::min(shortest, prompt.size());
    longest = std::max(longest, prompt.size());
  }
  require_consistent(model, static_cast<int64_t>(longest), count, search);
  const NoGrad off;
  std::vector<Sample> samples;
  std::vector<int64_t> first;
  for (const std::vector<int32_t>& prompt : prompts) {
    samples.emplace_back(search, std::vector<int64_t>(prompt.begin(), prompt.end()), shortest,
                         count);
    first.insert(first.end(), prompt.begin(),
                 prompt.begin() + static_cast<std::ptrdiff_t>(shortest));
  }
  const int64_t batch = std::ssize(prompts);
  const auto state = need<ContinuesSequences>(model).start_decoding(batch);
  const Tensor fresh = Tensor::from(first, {batch, static_cast<int64_t>(shortest)}, model.device());
  return search_from(model, std::move(samples), fresh, *state, count, search);
}

}  // namespace longspan
