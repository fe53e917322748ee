#include "data/documents.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "data/draws.h"

namespace longspan {

TokenDocument token_document(const Document& document, const Tokenizer& tokenizer, int32_t end,
                             int64_t longest) {
  require(longest >= 2, "documents", "sentences of {} tokens; expected 2 or more", longest);
  require(document.labels.empty() || document.labels.size() == document.article.size(), "documents",
          "{} labels for {} sentences; expected one for each", document.labels.size(),
          document.article.size());
  TokenDocument out;
  for (const std::string& sentence : document.article) {
    std::vector<int32_t> ids = tokenizer.encode(sentence);
    if (std::ssize(ids) > longest - 1) {
      ids.resize(static_cast<size_t>(longest - 1));
      ++out.cut;
    }
    ids.push_back(end);
    out.sentences.push_back(std::move(ids));
  }
  out.labels.assign(document.labels.begin(), document.labels.end());
  return out;
}

std::vector<TokenDocument> pieces_of(const TokenDocument& document, int64_t most) {
  require(most >= 1, "documents", "pieces of {} sentences; expected 1 or more", most);
  std::vector<TokenDocument> all;
  const auto part = [&](const auto& from, int64_t begin, int64_t end) {
    using List = std::remove_cvref_t<decltype(from)>;
    return from.empty() ? List{} : List(from.begin() + begin, from.begin() + end);
  };
  const int64_t n = std::ssize(document.sentences);
  for (int64_t begin = 0; begin < n; begin += most) {
    const int64_t end = std::min(begin + most, n);
    all.push_back({part(document.sentences, begin, end), part(document.labels, begin, end)});
  }
  return all;
}

int64_t masked_count(int64_t sentences, const SentenceMasking& masking) {
  // The nearest number to the product, so that 0.15 * 20 is 3, whatever is below the last bit.
  const double share = masking.share * static_cast<double>(sentences);
  const auto whole = static_cast<int64_t>(std::floor(share + 1e-9));
  return std::min({std::max<int64_t>(1, whole), masking.most, sentences});
}

namespace {

using Sentences = std::vector<std::vector<int32_t>>;

/// Masks sentences of document `d`, the next one. other(draws) returns the index and the sentences
/// of the document that gives one in place of a masked one.
void mask_next(MaskedDocuments& out, int64_t d, const Sentences& sentences, int64_t slots,
               const SentenceMasking& masking, Draws& draws, const auto& other_of) {
  const int64_t n = std::ssize(sentences);
  require(n >= 1, "documents", "document {} has no sentences to mask; expected 1 or more", d);
  std::vector<int64_t> order(sentences.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const int64_t count = masked_count(n, masking);
  for (int64_t i = 0; i < count; ++i) {  // the head of a random permutation
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i + draws.below(n - i))]);
  }
  std::sort(order.begin(), order.begin() + count);
  for (int64_t i = 0; i < count; ++i) {
    const auto s = static_cast<size_t>(order[static_cast<size_t>(i)]);
    const auto place = static_cast<int64_t>(s);
    out.masked.push_back({d, place, slots + place, sentences[s]});
    std::vector<int32_t>& seen = out.documents[static_cast<size_t>(d)][s];
    const double u = draws.uniform(), v = draws.uniform();
    if (u < masking.masked) {
      std::fill(seen.begin(), seen.end() - 1, masking.token);
    } else if (v >= masking.kept) {
      const auto& [which, other] = other_of(draws);
      require(!other->empty(), "documents", "document {} has no sentences; expected 1 or more",
              which);
      seen = (*other)[static_cast<size_t>(draws.below(std::ssize(*other)))];
    }
  }
}

}  // namespace

MaskedDocuments mask_sentences(std::span<const TokenDocument* const> batch,
                               const SentenceMasking& masking, Generator gen) {
  Draws draws(gen);
  MaskedDocuments out;
  for (const TokenDocument* document : batch) out.documents.push_back(document->sentences);
  const auto documents = static_cast<int64_t>(batch.size());
  int64_t slots = 0;  // sentences of earlier documents
  for (int64_t d = 0; d < documents; ++d) {
    const Sentences& sentences = batch[static_cast<size_t>(d)]->sentences;
    mask_next(out, d, sentences, slots, masking, draws, [&](Draws& next) {
      const int64_t step = documents > 1 ? 1 + next.below(documents - 1) : 0;
      const int64_t which = (d + step) % documents;
      return std::pair(which, &batch[static_cast<size_t>(which)]->sentences);
    });
    slots += std::ssize(sentences);
  }
  return out;
}

MaskedDocuments mask_sentences(const TokenDocument& document, const TokenDocument& other,
                               const SentenceMasking& masking, Generator gen) {
  Draws draws(gen);
  MaskedDocuments out{{document.sentences}, {}};
  mask_next(out, 0, document.sentences, 0, masking, draws,
            [&](Draws&) { return std::pair(int64_t{1}, &other.sentences); });
  return out;
}

}  // namespace longspan
