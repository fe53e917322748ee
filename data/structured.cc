#include "data/structured.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/error.h"

namespace longspan {
namespace {

constexpr const char* kStructuredText = "structured text";

bool is_space(uint8_t c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_word(uint8_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c >= 128 ||
         c == '\'';
}

/// Returns a uniform random value in [0, 1) for each i.
double draw(Generator g, int64_t i) {
  return static_cast<double>(to_uniform(philox_word(g.key, i)));
}

struct Word {
  int64_t begin = 0, end = 0;
};

/// Returns the words of a row, and the single bytes between them that are not white space.
std::vector<Word> words_of(std::span<const int32_t> tokens, std::span<const uint8_t> open) {
  std::vector<Word> words;
  const auto n = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < n;) {
    const auto byte = [&](int64_t j) {
      return static_cast<uint8_t>(tokens[static_cast<size_t>(j)]);
    };
    const auto usable = [&](int64_t j) { return open[static_cast<size_t>(j)] != 0; };
    int64_t end = i + 1;
    if (usable(i) && is_word(byte(i))) {
      while (end < n && usable(end) && is_word(byte(end))) ++end;
    }
    // White space joins nothing: each of its bytes is a word of its own.
    if (usable(i)) words.push_back({i, end});
    i = end;
  }
  return words;
}

/// Masks words of a row until the fraction o.word_share of its open bytes is masked.
void hide_words(std::span<int32_t> tokens, std::span<int32_t> targets,
                std::span<const uint8_t> open, Generator g, const StructuredOptions& o) {
  const std::vector<Word> words = words_of(tokens, open);
  std::vector<int64_t> order(words.size());
  std::iota(order.begin(), order.end(), 0);
  const Generator by = g.fork("word"), bytes = g.fork("byte");
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t p, int64_t q) { return draw(by, p) < draw(by, q); });
  double left = o.word_share * std::accumulate(open.begin(), open.end(), 0.0);
  for (const int64_t w : order) {
    if (left <= 0) return;
    const Word& word = words[static_cast<size_t>(w)];
    for (int64_t i = word.begin; i < word.end; ++i, --left) {
      const auto at = static_cast<size_t>(i);
      targets[at] = tokens[at];
      const double u = draw(bytes, 2 * i);
      if (u < 0.9) {
        tokens[at] = static_cast<int32_t>(u < 0.8 ? static_cast<uint32_t>(o.mask_token)
                                                  : philox_word(bytes.key, 2 * i + 1) % 256);
      }
    }
  }
}

/// Whether a period does not end a sentence: before a lower-case letter, or after an initial or a
/// title.
bool in_sentence(std::span<const uint8_t> text, int64_t dot, uint8_t following) {
  if (following >= 'a' && following <= 'z') return true;
  int64_t begin = dot;
  while (begin > 0 && is_word(text[static_cast<size_t>(begin - 1)])) --begin;
  const std::string word(text.begin() + begin, text.begin() + dot);
  if (word.size() == 1) return word[0] >= 'A' && word[0] <= 'Z' && word[0] != 'I';
  constexpr const char* titles[] = {"Mr", "Mrs", "Ms",  "Dr",  "St", "Prof", "Gen", "Col", "Capt",
                                    "Lt", "Rev", "Hon", "Sen", "Jr", "Sr",   "vs",  "cf"};
  return std::any_of(std::begin(titles), std::end(titles),
                     [&](const char* t) { return word == t; });
}

Tensor data(const auto& values, const Shape& shape) {
  Tensor t = Tensor::from(values, shape);
  t.set_category(Category::data);
  return t;
}

}  // namespace

std::vector<Sentence> split_sentences(std::span<const uint8_t> text, int64_t longest) {
  require(longest >= 1, kStructuredText, "longest is {}; expected 1 or more", longest);
  std::vector<Sentence> all;
  const auto n = static_cast<int64_t>(text.size());
  const auto at = [&](int64_t i) { return text[static_cast<size_t>(i)]; };
  int64_t begin = 0, paragraph = 0;
  for (int64_t i = 0; i < n;) {
    const uint8_t c = at(i++);
    bool ends = i == n || i - begin == longest;
    bool blank = false;
    if (c == '.' || c == '!' || c == '?' || c == '\n') {
      int64_t j = i;
      while (c != '\n' && j < n && (at(j) == '"' || at(j) == '\'' || at(j) == ')')) ++j;
      int64_t lines = c == '\n' ? 1 : 0;
      const int64_t space = j;
      while (j < n && is_space(at(j))) lines += at(j++) == '\n' ? 1 : 0;
      blank = lines > 1;
      const bool goes_on =
          c == '.' && space == i && j > space && j < n && !blank && in_sentence(text, i - 1, at(j));
      if (blank || (c != '\n' && (j > space || j == n) && !goes_on)) {
        i = std::min(j, begin + longest);
        blank = blank && i == j;
        ends = true;
      }
    }
    if (!ends) continue;
    all.push_back({begin, i - begin, paragraph});
    begin = i;
    paragraph += blank ? 1 : 0;
  }
  return all;
}

StructuredBatches::StructuredBatches(std::span<const uint8_t> text, int64_t batch,
                                     const StructuredOptions& options)
    : text_(text), batch_(batch), options_(options) {
  const StructuredOptions& o = options_;
  require(batch >= 1, kStructuredText, "batch is {}; expected 1 or more", batch);
  require(o.n_long >= 1 && o.paragraphs >= 1 && o.sentences >= 1, kStructuredText,
          "n_long is {}, paragraphs {}, sentences {}; expected 1 or more of each", o.n_long,
          o.paragraphs, o.sentences);
  require(o.owners >= 1 && o.owners <= 3, kStructuredText,
          "owners is {}; expected 1: the sentence, 2: and the paragraph, 3: and the document",
          o.owners);
  for (const double share : {o.word_share, o.sentence_share}) {
    require(share >= 0 && share <= 1, kStructuredText, "a share to hide is {}; expected 0 to 1",
            share);
  }
  sentences_ = split_sentences(text, std::min<int64_t>(128, o.n_long));
  require(!sentences_.empty(), kStructuredText, "the text is empty");
  const auto count = static_cast<int64_t>(sentences_.size());
  for (int64_t i = 0; i < count; i = window_end(i)) windows_.push_back(i);
}

int64_t StructuredBatches::size() const {
  return (static_cast<int64_t>(windows_.size()) + batch_ - 1) / batch_;
}

int64_t StructuredBatches::window_end(int64_t first) const {
  const Sentence& start = sentences_[static_cast<size_t>(first)];
  int64_t i = first;
  for (; i < static_cast<int64_t>(sentences_.size()) && i - first < options_.sentences; ++i) {
    const Sentence& s = sentences_[static_cast<size_t>(i)];
    if (s.begin + s.length - start.begin > options_.n_long) break;
    if (s.paragraph - start.paragraph >= options_.paragraphs) break;
  }
  return i;
}

StructuredBatch StructuredBatches::at(int64_t step) const {
  const Generator g = Generator{options_.seed}.fork("structured").fork(static_cast<uint64_t>(step));
  std::vector<int64_t> firsts;
  for (int64_t b = 0; b < batch_; ++b) {
    const uint64_t bits = philox_word(g.fork("window").key, 2 * b) |
                          uint64_t{philox_word(g.fork("window").key, 2 * b + 1)} << 32;
    firsts.push_back(static_cast<int64_t>(to_range(bits, sentences_.size())));
  }
  return build(firsts, g);
}

StructuredBatch StructuredBatches::in_order(int64_t i) const {
  const auto begin = windows_.begin() + i * batch_;
  const auto end = std::min(begin + batch_, windows_.end());
  return build({begin, end},
               Generator{options_.seed}.fork("in order").fork(static_cast<uint64_t>(i)));
}

StructuredBatch StructuredBatches::build(const std::vector<int64_t>& firsts, Generator g) const {
  const auto rows = static_cast<int64_t>(firsts.size());
  const int64_t n_l = options_.n_long, n_g = options_.globals();
  const auto made = [](int64_t n, int32_t value) {
    return std::vector<int32_t>(static_cast<size_t>(n), value);
  };
  std::vector<int32_t> tokens = made(rows * n_l, 0), targets = made(rows * n_l, ignored_target);
  std::vector<int32_t> owner = made(rows * n_l * options_.owners, -1),
                       example = made(rows * n_l, -1);
  std::vector<int32_t> global_example = made(rows * n_g, -1), level = global_example,
                       parent = global_example;
  const auto owners = static_cast<size_t>(options_.owners);
  std::vector<int64_t> places;
  std::vector<Sentence> hidden;
  for (int64_t b = 0; b < rows; ++b) {
    const Generator row = g.fork("row").fork(static_cast<uint64_t>(b));
    const int64_t first = firsts[static_cast<size_t>(b)], end = window_end(first);
    const Sentence& start = sentences_[static_cast<size_t>(first)];
    const int64_t paragraphs =
        sentences_[static_cast<size_t>(end - 1)].paragraph - start.paragraph + 1;
    const auto global = [&](int64_t m, int32_t l, int64_t above) {
      const auto at = static_cast<size_t>(b * n_g + m);
      global_example[at] = 0;
      level[at] = l;
      parent[at] = static_cast<int32_t>(above);
    };
    global(0, 0, -1);
    for (int64_t p = 0; p < paragraphs; ++p) global(1 + p, 1, 0);
    std::vector<uint8_t> open(static_cast<size_t>(n_l), 0);
    for (int64_t i = first; i < end; ++i) {
      const Sentence& s = sentences_[static_cast<size_t>(i)];
      const int64_t m = 1 + paragraphs + i - first;
      global(m, 2, 1 + s.paragraph - start.paragraph);
      const bool whole = draw(row.fork("sentence"), i - first) < options_.sentence_share;
      if (whole) {
        places.push_back(b * n_g + m);
        hidden.push_back(s);
      }
      for (int64_t j = 0; j < s.length; ++j) {
        const int64_t place = s.begin + j - start.begin;
        const auto at = static_cast<size_t>(b * n_l + place);
        const int64_t levels[] = {m, 1 + s.paragraph - start.paragraph, 0};
        for (size_t o = 0; o < owners; ++o) {
          owner[at * owners + o] = static_cast<int32_t>(levels[o]);
        }
        example[at] = 0;
        tokens[at] = whole ? static_cast<int32_t>(options_.mask_token)
                           : text_[static_cast<size_t>(s.begin + j)];
        open[static_cast<size_t>(place)] = whole ? 0 : 1;
      }
    }
    const auto row_of = [&](std::vector<int32_t>& x) {
      return std::span<int32_t>{x.data() + b * n_l, static_cast<size_t>(n_l)};
    };
    hide_words(row_of(tokens), row_of(targets), open, row, options_);
  }
  StructuredBatch batch = alone(hidden);
  batch.tokens = data(tokens, {rows, n_l});
  batch.targets = data(targets, {rows, n_l});
  batch.owner = data(owner, owners == 1 ? Shape{rows, n_l} : Shape{rows, n_l, options_.owners});
  batch.example = data(example, {rows, n_l});
  batch.global_example = data(global_example, {rows, n_g});
  batch.level = data(level, {rows, n_g});
  batch.parent = data(parent, {rows, n_g});
  batch.places = data(places, {static_cast<int64_t>(places.size())});
  return batch;
}

/// Returns the sentences as a padded batch.
StructuredBatch StructuredBatches::alone(const std::vector<Sentence>& hidden) const {
  int64_t longest = 1;
  for (const Sentence& s : hidden) longest = std::max(longest, s.length);
  const auto count = static_cast<int64_t>(hidden.size());
  std::vector<int32_t> bytes(static_cast<size_t>(count * longest), 0);
  std::vector<int32_t> example(bytes.size(), -1);
  for (int64_t p = 0; p < count; ++p) {
    const Sentence& s = hidden[static_cast<size_t>(p)];
    for (int64_t j = 0; j < s.length; ++j) {
      bytes[static_cast<size_t>(p * longest + j)] = text_[static_cast<size_t>(s.begin + j)];
      example[static_cast<size_t>(p * longest + j)] = 0;
    }
  }
  StructuredBatch batch;
  batch.hidden = data(bytes, {count, longest});
  batch.hidden_example = data(example, {count, longest});
  return batch;
}

}  // namespace longspan
