#include "data/sequence_pairs.h"

#include <algorithm>

#include "core/error.h"
#include "data/corpus.h"
#include "data/gap_sentences.h"
#include "nn/objective.h"

namespace longspan {
namespace {

constexpr const char* kSequencePairs = "sequence pairs";

std::string joined(std::span<const std::string> sentences, char between) {
  std::string text;
  for (const std::string& sentence : sentences) {
    if (!text.empty()) text += between;
    text += sentence;
  }
  return text;
}

void require_limits(const SequenceLimits& limits) {
  require(limits.source >= 1 && limits.target >= 1, kSequencePairs,
          "got at most {} tokens of a source and {} of a target; expected 1 or more", limits.source,
          limits.target);
}

/// Returns begin, as many ids as fit, end.
std::vector<int32_t> framed(std::span<const int32_t> ids, const SequenceIds& special,
                            int64_t longest) {
  const auto room = static_cast<size_t>(std::max<int64_t>(longest - 2, 0));
  std::vector<int32_t> source{special.begin};
  const auto kept = static_cast<std::ptrdiff_t>(std::min(room, ids.size()));
  source.insert(source.end(), ids.begin(), ids.begin() + kept);
  if (longest >= 2) source.push_back(special.end);
  return source;
}

/// Sets the target to as many of the first tokens of a text as fit, then end.
void set_target(SequencePair& pair, std::string_view text, const Tokenizer& tokenizer,
                const SequenceIds& special, int64_t longest) {
  const std::vector<Piece> pieces = tokenizer.pieces(text);
  const size_t kept = std::min(pieces.size(), static_cast<size_t>(longest - 1));
  for (size_t i = 0; i < kept; ++i) pair.target.push_back(pieces[i].id);
  pair.target.push_back(special.end);
  pair.bytes = kept > 0 ? pieces[kept - 1].end : 0;
}

/// Returns where runs of whole sentences end that have at most `room` tokens each; a longer
/// sentence is a run of its own.
std::vector<size_t> run_ends(std::span<const std::string> sentences, const Tokenizer& tokenizer,
                             int64_t room) {
  std::vector<size_t> ends;
  int64_t used = 0;
  for (size_t i = 0; i < sentences.size(); ++i) {
    const auto n = static_cast<int64_t>(tokenizer.encode(" " + sentences[i]).size());
    if (used > 0 && used + n > room) {
      ends.push_back(i);
      used = 0;
    }
    used += n;
  }
  if (!sentences.empty()) ends.push_back(sentences.size());
  return ends;
}

}  // namespace

SequenceIds::SequenceIds(const Tokenizer& tokenizer) : vocabulary(tokenizer.vocabulary()) {
  const SpecialIds& special = tokenizer.special();
  const auto own = [&](int32_t id) { return id >= 0 ? id : static_cast<int32_t>(vocabulary++); };
  begin = own(special.begin);
  end = own(special.separator);
  mask = own(special.mask);
  start = end;
}

std::string article_text(const Document& document) { return joined(document.article, ' '); }

std::string summary_text(const Document& document) { return joined(document.summary, '\n'); }

std::vector<std::string> summary_sentences(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) all.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

std::vector<int32_t> source_tokens(std::string_view text, const Tokenizer& tokenizer,
                                   int64_t longest) {
  require_limits({longest, 1});
  return framed(tokenizer.encode(text), SequenceIds(tokenizer), longest);
}

SequencePair summary_pair(const Document& document, const Tokenizer& tokenizer,
                          const SequenceLimits& limits) {
  require_limits(limits);
  SequencePair pair;
  pair.source = source_tokens(article_text(document), tokenizer, limits.source);
  set_target(pair, summary_text(document), tokenizer, SequenceIds(tokenizer), limits.target);
  return pair;
}

std::vector<SequencePair> summary_pairs(std::span<const Document> documents,
                                        const Tokenizer& tokenizer, const SequenceLimits& limits) {
  std::vector<SequencePair> all;
  for (const Document& d : documents) all.push_back(summary_pair(d, tokenizer, limits));
  return all;
}

std::vector<SequencePair> gap_pairs(const Document& document, double share,
                                    const Tokenizer& tokenizer, const SequenceLimits& limits) {
  require_limits(limits);
  const SequenceIds ids(tokenizer);
  const std::span<const std::string> all = document.article;
  std::vector<SequencePair> pairs;
  size_t begin = 0;
  for (const size_t end : run_ends(all, tokenizer, limits.source - 2)) {
    const std::span<const std::string> run = all.subspan(begin, end - begin);
    begin = end;
    const std::vector<int64_t> chosen = gap_sentences(run, share);
    if (chosen.empty()) continue;
    std::vector<std::string> said;
    said.reserve(chosen.size());
    for (const int64_t i : chosen) said.push_back(run[static_cast<size_t>(i)]);
    SequencePair pair;
    pair.source = framed(gap_pair(run, chosen, tokenizer, ids.mask).source, ids, limits.source);
    set_target(pair, joined(said, '\n'), tokenizer, ids, limits.target);
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

std::string written_text(std::span<const int64_t> ids, const Tokenizer& tokenizer,
                         const SequenceIds& special) {
  std::vector<int32_t> text;
  for (const int64_t id : ids) {
    if (id == special.end) break;
    const bool other = id == special.begin || id == special.mask || id >= tokenizer.vocabulary();
    if (!other) text.push_back(static_cast<int32_t>(id));
  }
  return tokenizer.decode(text);
}

SequenceBatch stack(std::span<const SequencePair* const> pairs, const SequenceIds& ids,
                    Device device) {
  require<ShapeError>(!pairs.empty(), kSequencePairs, "there are no pairs to stack");
  size_t source = 0, target = 0;
  for (const SequencePair* p : pairs) {
    source = std::max(source, p->source.size());
    target = std::max(target, p->target.size());
  }
  SequenceBatch batch;
  std::vector<int32_t> sources, tokens, targets;
  std::vector<int64_t> lengths;
  for (const SequencePair* p : pairs) {
    sources.insert(sources.end(), p->source.begin(), p->source.end());
    sources.resize(sources.size() + source - p->source.size(), ids.end);
    lengths.push_back(static_cast<int64_t>(p->source.size()));
    tokens.push_back(ids.last_first ? p->target.back() : ids.start);
    tokens.insert(tokens.end(), p->target.begin(), p->target.end() - 1);
    tokens.resize(tokens.size() + target - p->target.size(), ids.end);
    targets.insert(targets.end(), p->target.begin(), p->target.end());
    targets.resize(targets.size() + target - p->target.size(), ignored_target);
    batch.count += static_cast<int64_t>(p->source.size() + p->target.size());
    batch.counted += static_cast<int64_t>(p->target.size());
  }
  const auto rows = static_cast<int64_t>(pairs.size());
  const auto s = static_cast<int64_t>(source), l = static_cast<int64_t>(target);
  batch.source = Tensor::from(sources, {rows, s}, device);
  batch.lengths = Tensor::from(lengths, {rows}, device);
  batch.tokens = Tensor::from(tokens, {rows, l}, device);
  batch.targets = Tensor::from(targets, {rows, l}, device);
  return batch;
}

SequenceBatches::SequenceBatches(std::vector<SequencePair> pairs, int64_t batch,
                                 const SequenceIds& ids, uint64_t seed, Device device)
    : pairs_(std::move(pairs)), batch_(batch), ids_(ids), seed_(seed), device_(device) {
  require(!pairs_.empty(), kSequencePairs, "there are no pairs to train on");
  require(batch >= 1, kSequencePairs, "batch is {}; expected 1 or more", batch);
}

SequenceBatch SequenceBatches::at(int64_t step) const {
  require(step >= 0, kSequencePairs, "step {} is negative", step);
  return from_row(step * batch_);
}

SequenceBatch SequenceBatches::from_row(int64_t first) const {
  std::vector<const SequencePair*> rows;
  for (int64_t b = 0; b < batch_; ++b) {
    rows.push_back(&pairs_[static_cast<size_t>(item_of_row(first + b, size(), seed_))]);
  }
  return stack(rows, ids_, device_);
}

}  // namespace longspan
