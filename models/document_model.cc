#include "models/document_model.h"

#include <algorithm>
#include <numeric>

#include "core/graph.h"
#include "models/parts.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kDocuments = "documents";

std::vector<int32_t> on_host(const Tensor& ids) {
  graph::refuse(kDocuments, "the host reads where sentences end");
  return cast(ids, DType::i32).to_vector<int32_t>();
}

}  // namespace

DocumentModel::CutRows DocumentModel::cut(const Tensor& rows,
                                          const std::vector<int64_t>& lengths) const {
  if (rows.rank() != 2)
    fail_with<ShapeError>(kDocuments, "tokens must be [B, L]", {{"tokens", rows}});
  const int64_t columns = rows.dim(1);
  const std::vector<int32_t> tokens = on_host(rows);
  const int32_t end = special().sentence_end;
  CutRows all;
  PackedDocuments& to = all.documents;
  const auto put = [&](int32_t token, int64_t from) {
    to.tokens.push_back(token);
    all.from.push_back(from);
    ++to.sentences.back();
  };
  for (size_t b = 0; b < lengths.size(); ++b) {
    require<ShapeError>(lengths[b] >= 1 && lengths[b] <= columns, kDocuments,
                        "row {} has {} tokens; expected 1 to {}", b, lengths[b], columns);
    to.documents.push_back(0);
    const int64_t first = static_cast<int64_t>(b) * columns;
    bool open = false;
    for (int64_t i = first; i < first + lengths[b]; ++i) {
      const int32_t token = tokens[static_cast<size_t>(i)];
      if (!open) {
        to.sentences.push_back(0);
        ++to.documents.back();
      }
      put(token, i);
      open = token != end;
      const bool last = i + 1 == first + lengths[b];
      const bool ends_next = !last && tokens[static_cast<size_t>(i + 1)] == end;
      const bool full = to.sentences.back() == max_sentence() - 1 && !ends_next;
      if (open && (full || last)) {
        put(end, -1);
        open = false;
      }
    }
  }
  return all;
}

DocumentModel::CutRows DocumentModel::cut(const Tensor& tokens) const {
  const int64_t length = tokens.rank() == 2 ? tokens.dim(1) : 0;
  return cut(tokens, std::vector<int64_t>(static_cast<size_t>(tokens.dim(0)), length));
}

/// Returns the sentences of which at least one token counts, or the first one if there is none.
///   counted  target of each token of the rows; ignored_target: does not count
SentenceTargets DocumentModel::written_of(const CutRows& rows,
                                          const std::vector<int32_t>& counted) const {
  const int32_t begin = special().begin;
  const PackedDocuments& in = rows.documents;
  SentenceTargets all;
  const auto add = [&](size_t slot, size_t first) {
    const auto length = static_cast<size_t>(in.sentences[slot]);
    const bool added = rows.from[first + length - 1] < 0;
    const size_t next = first + length - (added ? 1 : 0);
    all.slots.push_back(static_cast<int64_t>(slot));
    all.lengths.push_back(static_cast<int64_t>(next - first));
    int32_t before = begin;
    for (size_t i = first; i < next; ++i) {
      const int32_t target = counted[static_cast<size_t>(rows.from[i])];
      all.inputs.push_back(before);
      all.targets.push_back(target);
      before = target == ignored_target ? in.tokens[i] : target;
    }
  };
  size_t first = 0;
  for (size_t slot = 0; slot < in.sentences.size(); ++slot) {
    const size_t next = first + static_cast<size_t>(in.sentences[slot]);
    const bool any = std::any_of(
        rows.from.begin() + static_cast<std::ptrdiff_t>(first),
        rows.from.begin() + static_cast<std::ptrdiff_t>(next),
        [&](int64_t i) { return i >= 0 && counted[static_cast<size_t>(i)] != ignored_target; });
    if (any) add(slot, first);
    first = next;
  }
  if (all.slots.empty()) add(0, 0);
  return all;
}

LanguageModel::Losses DocumentModel::label_loss(const PackedDocuments& in,
                                                const std::vector<int32_t>& of_sentences,
                                                Pass pass) const {
  require<ShapeError>(of_sentences.size() == in.sentences.size(), kDocuments,
                      "got {} labels for {} sentences; expected one for each", of_sentences.size(),
                      in.sentences.size());
  const Tensor targets = Tensor::from(of_sentences, {std::ssize(of_sentences)}, device());
  Losses result;
  result.loss = cross_entropy(label_logits(in, pass), targets, {.ignore = ignored_target});
  return result;
}

LanguageModel::Losses DocumentModel::loss(const Tensor& tokens, const Tensor& targets,
                                          const SegmentMemory& memory, Pass pass) const try {
  require_no_memory(kDocuments, memory);
  if (targets.shape() != tokens.shape()) {
    fail_with<ShapeError>(kDocuments, "targets must have the shape of tokens",
                          {{"tokens", tokens}, {"targets", targets}});
  }
  const CutRows rows = cut(tokens);
  const std::vector<int32_t> counted = on_host(targets);
  if (labels() == 0) {
    return sentence_loss(rows.documents, written_of(rows, counted), pass);
  }
  std::vector<int32_t> of_sentences;
  size_t next = 0;
  for (const int64_t length : rows.documents.sentences) {
    next += static_cast<size_t>(length);
    const int64_t last = rows.from[next - 1] >= 0 ? rows.from[next - 1] : rows.from[next - 2];
    of_sentences.push_back(counted[static_cast<size_t>(last)]);
  }
  return label_loss(rows.documents, of_sentences, pass);
} catch (const std::bad_alloc&) {
  fail_for_memory(kDocuments);
}

Tensor DocumentModel::logits(const Tensor& tokens, Pass pass) const {
  const CutRows rows = cut(tokens);
  std::vector<int64_t> at(static_cast<size_t>(tokens.numel()));  // the row of z for each token
  std::vector<int32_t> counted(at.size());
  int64_t written = 0;
  for (size_t i = 0, sentence = 0, left = 0; i < rows.from.size(); ++i, --left) {
    if (left == 0) left = static_cast<size_t>(rows.documents.sentences[sentence++]);
    if (rows.from[i] < 0) continue;
    const auto from = static_cast<size_t>(rows.from[i]);
    at[from] = labels() > 0 ? static_cast<int64_t>(sentence) - 1 : written++;
    counted[from] = rows.documents.tokens[i];
  }
  const Tensor z = labels() > 0 ? label_logits(rows.documents, pass)
                                : sentence_logits(rows.documents, written_of(rows, counted), pass);
  const Tensor found = take(z, Tensor::from(at, {tokens.numel()}, z.device()));
  return unflatten(found, 0, tokens.dim(0), tokens.dim(1));
}

std::unique_ptr<DecodeState> DocumentModel::start_after(const SourceTokens& source) const {
  require_no_mask("document_model", source);
  const PackedDocuments in =
      (source.lengths ? cut(source.tokens, source.lengths.to_vector<int64_t>())
                      : cut(source.tokens))
          .documents;
  std::vector<int64_t> slots;
  size_t slot = 0, first = 0;
  for (size_t row = 0; row < in.documents.size(); ++row) {
    const size_t last = slot + static_cast<size_t>(in.documents[row]);
    int64_t found = -1;
    for (; slot < last; ++slot) {
      if (found < 0 && in.tokens[first] == special().mask) found = static_cast<int64_t>(slot);
      first += static_cast<size_t>(in.sentences[slot]);
    }
    require(found >= 0, kDocuments,
            "row {} has no masked sentence to write; expected one that begins with token {}", row,
            special().mask);
    slots.push_back(found);
  }
  return start_writing(in, slots);
}

}  // namespace longspan
