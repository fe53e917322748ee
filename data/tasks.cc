#include "data/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "data/cluster_task.h"
#include "data/collision.h"
#include "data/memory_tasks.h"
#include "data/topic_documents.h"

namespace longspan {

void DuplicateTask::fit(int64_t length, int64_t tokens) {
  require(length >= 4 && length % 2 == 0, "length",
          "got {}; expected an even number from 4 on: a zero and a word, twice", length);
  symbols = (length - 2) / 2;
  vocabulary = tokens;
}

Sample DuplicateTask::sample(const SampleKey& key) const {
  require(symbols >= 1 && vocabulary >= 2, "duplicate",
          "got {} symbols of {} tokens; expected 1 or more of 2 or more", symbols, vocabulary);
  Draws draws = draws_of("duplicate", key);
  Sample s;
  s.tokens.assign(static_cast<size_t>(length()), 0);
  s.targets.assign(s.tokens.size(), ignored_target);
  for (int64_t i = 0; i < symbols; ++i) {
    const auto token = static_cast<int32_t>(1 + draws.below(vocabulary - 1));
    const auto first = static_cast<size_t>(1 + i), second = static_cast<size_t>(symbols + 2 + i);
    s.tokens[first] = s.tokens[second] = token;
    s.targets[second - 1] = token;
  }
  return s;
}

void SortTask::fit(int64_t length, int64_t tokens) {
  require(length >= 2 && length % 2 == 0, "length",
          "got {}; expected an even number from 2 on: symbols, a zero, and all but one again",
          length);
  symbols = length / 2;
  vocabulary = tokens;
}

Sample SortTask::sample(const SampleKey& key) const {
  require(symbols >= 1 && vocabulary >= 2, "sort",
          "got {} symbols of {} tokens; expected 1 or more of 2 or more", symbols, vocabulary);
  Draws draws = draws_of("sort", key);
  std::vector<int32_t> drawn;
  for (int64_t i = 0; i < symbols; ++i) {
    drawn.push_back(static_cast<int32_t>(1 + draws.below(vocabulary - 1)));
  }
  Sample s{.tokens = drawn, .targets = std::vector<int32_t>(drawn.size(), ignored_target)};
  std::sort(drawn.begin(), drawn.end());
  s.tokens.push_back(0);
  s.tokens.insert(s.tokens.end(), drawn.begin(), drawn.end() - 1);
  s.targets.insert(s.targets.end(), drawn.begin(), drawn.end());
  return s;
}

namespace {

void check(const RetrievalTask& t) {
  const auto require_within = [](std::string_view option, int64_t value, int64_t most) {
    require(value >= 1 && value <= most, option, "got {}; expected 1 to {}", value, most);
  };
  constexpr int64_t many = 1 << 15;  // so that all tokens are of 32 bits
  require_within("retrieval.keys", t.keys, many);
  require_within("retrieval.values", t.values, many);
  require_within("retrieval.symbols", t.symbols, many);
  require_within("retrieval.facts", t.facts, t.keys);
  require_within("retrieval.questions", t.questions, t.facts);
  require(t.length >= t.facts + t.questions, "length",
          "got {}; expected {} or more: the facts and the questions", t.length,
          t.facts + t.questions);
}

}  // namespace

void RetrievalTask::fit(int64_t run_length, int64_t /*vocabulary*/) {
  length = run_length;
  check(*this);
}

Sample RetrievalTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("retrieval", key);
  const int64_t text = length - questions;
  const std::vector<int64_t> places =
      Permutation(text, draws.generator().fork("places")).first(facts);
  const std::vector<int64_t> known = Permutation(keys, draws.generator().fork("keys")).first(facts);
  Sample s;
  for (int64_t i = 0; i < text; ++i) {
    s.tokens.push_back(static_cast<int32_t>(fact(keys, draws.below(symbols))));
  }
  s.targets.assign(s.tokens.size(), ignored_target);
  for (size_t i = 0; i < known.size(); ++i) {
    const int64_t value = draws.below(values);
    s.tokens[static_cast<size_t>(places[i])] = static_cast<int32_t>(fact(known[i], value));
    if (static_cast<int64_t>(i) >= questions) continue;
    s.tokens.push_back(static_cast<int32_t>(question(known[i])));
    s.targets.push_back(static_cast<int32_t>(value));
  }
  return s;
}

void CopyTask::fit(int64_t length, int64_t /*vocabulary*/) {
  require(symbols >= 1 && length > 2 * symbols, "length",
          "got {}; expected more than {}: {} symbols, blanks, and the symbols again", length,
          2 * symbols, symbols);
  blanks = length - 2 * symbols;
}

Sample CopyTask::sample(const SampleKey& key) const {
  require(symbols >= 1 && alphabet >= 1 && blanks >= 1, "copy",
          "got {} symbols of {} and {} blanks; expected 1 or more of each", symbols, alphabet,
          blanks);
  Draws draws = draws_of("copy", key);
  Sample s;
  s.tokens.assign(static_cast<size_t>(length()), 0);
  s.targets.assign(s.tokens.size(), ignored_target);
  for (int64_t i = 0; i < symbols; ++i) {
    const auto token = static_cast<int32_t>(1 + draws.below(alphabet));
    s.tokens[static_cast<size_t>(i)] = token;
    s.targets[static_cast<size_t>(symbols + blanks + i)] = token;
  }
  s.tokens[static_cast<size_t>(symbols + blanks - 1)] = static_cast<int32_t>(alphabet + 1);
  return s;
}

void NeedleTask::fit(int64_t tokens, int64_t /*vocabulary*/) {
  length = tokens;
  sample({});  // throws if the facts do not fit
}

Sample NeedleTask::sample(const SampleKey& key) const {
  const int64_t fact = 2 + value_length, text = length - 4;
  require(facts >= 1 && value_length >= 1 && values >= 1 && filler >= 1 && keys >= facts, "needle",
          "got {} facts of {} keys, {} values of {} tokens and {} fillers; expected 1 or more of "
          "each, and as many keys as facts",
          facts, keys, values, value_length, filler);
  require(text >= facts * fact, "needle",
          "{} facts of {} tokens do not fit into {}; expected {} or more", facts, fact, length,
          facts * fact + 4);
  Draws draws = draws_of("needle", key);
  const auto key_token = [&](int64_t k) { return static_cast<int32_t>(4 + k); };
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };

  Sample s;
  s.tokens.resize(at(length));
  for (int32_t& token : s.tokens) {
    token = static_cast<int32_t>(4 + keys + values + draws.below(filler));
  }
  const int64_t text_begin = question_first ? 4 : 1;
  const int64_t question = question_first ? 1 : length - 2;
  s.global = {static_cast<int32_t>(question), static_cast<int32_t>(question + 1)};
  const std::vector<int64_t> named = Permutation(keys, draws.generator().fork("keys")).first(facts);
  // Any distinct slots are valid once all but one token of each fact are removed; the removed
  // tokens are added again below.
  std::vector<int64_t> places =
      Permutation(text - facts * (fact - 1), draws.generator().fork("places")).first(facts);
  std::sort(places.begin(), places.end());
  const int64_t asked = draws.below(facts);
  for (int64_t f = 0; f < facts; ++f) {
    const int64_t begin = text_begin + places[at(f)] + f * (fact - 1);
    s.tokens[at(begin)] = 2;
    s.tokens[at(begin + 1)] = key_token(named[at(f)]);
    for (int64_t i = 0; i < value_length; ++i) {
      s.tokens[at(begin + 2 + i)] = static_cast<int32_t>(4 + keys + draws.below(values));
    }
    if (f == asked) {
      s.targets = {static_cast<int32_t>(begin + 2), static_cast<int32_t>(begin + 1 + value_length)};
    }
  }
  s.tokens[0] = 0;
  s.tokens[at(question_first ? 3 : length - 3)] = 1;
  s.tokens[at(question)] = 3;
  s.tokens[at(question + 1)] = key_token(named[at(asked)]);
  return s;
}

NeedleQuestion question_of(const Sample& sample) {
  const int64_t question = sample.global.at(0), separator = sample.global.back() + 1;
  require(question == 1, "needle", "the question comes last; expected it first");
  const auto pieces = [&](int64_t begin, int64_t end) {
    std::vector<Piece> all;
    for (int64_t i = begin; i < end; ++i) {
      all.push_back({sample.tokens[static_cast<size_t>(i)], true, i - begin, i - begin + 1});
    }
    return all;
  };
  const int64_t text = separator + 1;
  const auto answer = static_cast<size_t>(sample.targets.at(1) - sample.targets.at(0) + 1);
  return {pieces(question, separator),
          pieces(text, static_cast<int64_t>(sample.tokens.size())),
          {std::string(answer, ' '), sample.targets.at(0) - text}};
}

NeedleBatches::NeedleBatches(const NeedleTask& task, int64_t batch, const WindowOptions& windows,
                             uint64_t seed)
    : task_(task), batch_(batch), options_(windows), key_{.seed = seed} {
  const NeedleQuestion q = question_of(task_.sample(key_));
  span_windows(q.question, q.text, nullptr, needle_ids, options_);
}

SpanBatch NeedleBatches::next() {
  const auto batch = static_cast<size_t>(batch_);
  for (; waiting_.size() < batch; ++key_.index) {
    const NeedleQuestion q = question_of(task_.sample(key_));
    for (SpanWindow& w : span_windows(q.question, q.text, &q.answer, needle_ids, options_)) {
      waiting_.push_back(std::move(w));
    }
  }
  const SpanBatch out = span_batch({waiting_.data(), batch});
  waiting_.erase(waiting_.begin(), waiting_.begin() + batch_);
  return out;
}

namespace {

/// Returns the positions at which all but `mismatches` bases match the motif.
std::vector<int64_t> places_of(const std::vector<int32_t>& motif, const std::vector<int32_t>& dna,
                               int64_t mismatches) {
  std::vector<int64_t> places;
  for (size_t i = 0; i + motif.size() <= dna.size(); ++i) {
    int64_t wrong = 0;
    for (size_t j = 0; j < motif.size() && wrong <= mismatches; ++j) {
      wrong += dna[i + j] != motif[j] ? 1 : 0;
    }
    if (wrong <= mismatches) places.push_back(static_cast<int64_t>(i));
  }
  return places;
}

bool stand_apart(const std::vector<int64_t>& first, const std::vector<int64_t>& second,
                 int64_t nearest, int64_t furthest) {
  for (const int64_t i : first) {
    const auto at = std::lower_bound(second.begin(), second.end(), i + nearest);
    if (at != second.end() && *at <= i + furthest) return true;
  }
  return false;
}

void check(const MotifTask& t) {
  require(t.motif >= 1 && t.pairs >= 1 && t.mismatches >= 0 && t.mismatches < t.motif, "motif-dna",
          "got {} pairs of motifs of {} bases with {} mismatches; expected 1 or more, and fewer "
          "mismatches than bases",
          t.pairs, t.motif, t.mismatches);
  require(t.nearest >= t.motif && t.nearest <= t.furthest && t.nearest + t.motif <= t.length,
          "motif-dna",
          "got motifs of {} bases {} to {} bases apart in {}; expected them to fit one after the "
          "other",
          t.motif, t.nearest, t.furthest, t.length);
  require(t.kmer >= 1 && t.kmer <= 8 && t.kmer <= t.length, "motif-dna",
          "got tokens of {} bases; expected 1 to 8", t.kmer);
}

}  // namespace

std::array<std::vector<int32_t>, 2> MotifTask::motifs(uint64_t seed, int64_t p) const {
  Draws draws = draws_of("motifs", {.seed = seed, .split = "", .index = static_cast<uint64_t>(p)});
  std::array<std::vector<int32_t>, 2> both;
  for (std::vector<int32_t>& m : both) {
    for (int64_t i = 0; i < motif; ++i) m.push_back(static_cast<int32_t>(draws.below(4)));
  }
  return both;
}

void MotifTask::fit(int64_t tokens, int64_t /*vocabulary*/) {
  length = tokens + kmer - 2;
  check(*this);
}

std::string MotifTask::token_kind() const { return fmt::format("runs of {} bases", kmer); }

Sample MotifTask::sample(const SampleKey& key) const {
  check(*this);
  // Chance or other pairs may undo the wanted labels; then the bases are drawn again.
  constexpr int tries = 32;
  Draws draws = draws_of("motif-dna", key);
  Sample s;
  std::vector<int32_t> dna(static_cast<size_t>(length));
  for (int round = 0; round < tries; ++round) {
    for (int32_t& base : dna) base = static_cast<int32_t>(draws.below(4));
    bool as_wanted = true;
    s.targets.clear();
    std::vector<int32_t> wanted;
    for (int64_t p = 0; p < pairs; ++p) {
      const auto both = motifs(key.seed, p);
      wanted.push_back(static_cast<int32_t>(draws.below(2)));
      // Kind of decoy: 0 only the first motif, 1 only the second, 2 both in reverse order.
      const int64_t form = draws.below(3);
      const bool reversed = wanted.back() == 0 && form == 2;
      const int64_t reach = std::min(furthest, length - motif);
      const int64_t gap = nearest + draws.below(reach - nearest + 1);
      const int64_t begin = draws.below(length - motif - gap + 1);
      for (size_t m = 0; m < 2; ++m) {
        if (wanted.back() == 0 && form != 2 && form != static_cast<int64_t>(m)) continue;
        const int64_t at = begin + ((m == 1) != reversed ? gap : 0);
        std::copy(both[m].begin(), both[m].end(), dna.begin() + at);
        for (int64_t n = draws.below(mismatches + 1); n > 0; --n) {
          dna[static_cast<size_t>(at + draws.below(motif))] = static_cast<int32_t>(draws.below(4));
        }
      }
    }
    for (int64_t p = 0; p < pairs; ++p) {
      const auto both = motifs(key.seed, p);
      s.targets.push_back(stand_apart(places_of(both[0], dna, mismatches),
                                      places_of(both[1], dna, mismatches), nearest, furthest)
                              ? 1
                              : 0);
      as_wanted = as_wanted && s.targets.back() == wanted[static_cast<size_t>(p)];
    }
    if (as_wanted) break;
  }
  s.tokens.push_back(static_cast<int32_t>(first_token()));
  for (int64_t i = 0; i + kmer <= length; ++i) {
    int32_t token = 0;
    for (int64_t j = 0; j < kmer; ++j) token = 4 * token + dna[static_cast<size_t>(i + j)];
    s.tokens.push_back(token);
  }
  return s;
}

void MarkerTask::fit(int64_t tokens, int64_t different) {
  length = tokens;
  vocabulary = different;
}

Sample MarkerTask::sample(const SampleKey& key) const {
  require(length >= 2 && vocabulary >= 2, "marker",
          "got {} tokens of {}; expected 2 or more of each", length, vocabulary);
  Draws draws = draws_of("marker", key);
  Sample s;
  for (int64_t i = 0; i < length; ++i) {
    s.tokens.push_back(static_cast<int32_t>(draws.below(vocabulary - 1)));
  }
  const int64_t half = length / 2, place = half + draws.below(length - half);
  s.targets = {static_cast<int32_t>(draws.below(2))};
  if (s.targets[0] == 1)
    s.tokens[static_cast<size_t>(place)] = static_cast<int32_t>(vocabulary - 1);
  s.global = {0};
  return s;
}

namespace {

template <class Task>
std::unique_ptr<SampleTask> task_of(const Task& task, int64_t held_out) {
  return std::make_unique<SampleTaskOf<Task>>(task, held_out);
}

constexpr SampleTaskEntry entries[] = {
    {"motif-dna", "motifs", "generated: pairs of motifs in random bases",
     [] {  // learnable by a small model in minutes
       return task_of(MotifTask{.mismatches = 0, .kmer = 6}, 512);
     }},
    {"duplicate", "duplicate", "generated: 0 w 0 w, w to be repeated",
     [] { return task_of(DuplicateTask{}, 256); }},
    {"sort", "sort", "generated: symbols, to be repeated in ascending order",
     [] { return task_of(SortTask{}, 256); }},
    {"retrieval", "retrieval", "generated: the value of the one key among all that is asked for",
     [] { return task_of(RetrievalTask{}, 256); }},
    {"copy-memory", "copy_memory", "generated: symbols, blanks, and the symbols to be repeated",
     [] { return task_of(CopyTask{}, 256); }},
    {"needle-qa", "needle_qa", "generated: one of some facts in noise, to be found by its key",
     [] { return task_of(NeedleTask{}, 256); }},
    {"marker", "marker", "generated: whether a distant token occurs",
     [] { return task_of(MarkerTask{}, 256); }},
    {"period", "period", "generated: a sequence with a period, to be continued",
     [] { return task_of(PeriodTask{}, 256); }},
    {"recall", "recall", "generated: the label at the start of a document, at its end",
     [] { return task_of(RecallTask{}, 256); }},
    {"multi-query-recall", "multi_query_recall", "generated: pairs, and the values of keys again",
     [] { return task_of(MultiQueryRecallTask{}, 256); }},
    {"corridor", "corridor", "generated: a mark in noise, to be recalled much later",
     [] { return task_of(CorridorTask{}, 256); }},
    {"collision", "collision", "generated: where two colours of moving particles met last",
     [] { return task_of(CollisionTask{}, 256); }},
    {"two-distance", "two_distance", "generated: next tokens that occurred at one of two distances",
     [] { return task_of(TwoDistanceTask{}, 256); }},
    {"lookup", "lookup", "generated: near tokens, and at markers a distant one",
     [] { return task_of(LookupTask{}, 256); }},
    {"marked-recall", "marked_recall", "generated: the label after a mark, at the end of noise",
     [] { return task_of(MarkedRecallTask{}, 256); }},
    {"clusters", "clusters", "generated: the token before each one in its group, among many groups",
     [] { return task_of(ClusterTask{}, 256); }},
    {"topic-docs", "topic_docs", "generated: documents whose sentences share a topic",
     [] { return task_of(TopicTask{}, 256); }},
    {"topic-labels", "topic_labels", "generated: which sentences have their document's topic",
     [] { return task_of(TopicTask{.mixed = true}, 256); }},
};

}  // namespace

std::span<const SampleTaskEntry> sample_tasks() { return entries; }

}  // namespace longspan
