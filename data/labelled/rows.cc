#include "data/labelled/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "data/tokenizers/hub_tokenizer.h"

namespace longspan {
namespace {

constexpr const char* kRows = "rows";

/// Returns the place of the first token of a sequence and of the first one behind it; the end twice
/// if there is none.
std::pair<int64_t, int64_t> place_of(const HubEncoding& row, int32_t sequence) {
  const auto begin = std::find(row.sequences.begin(), row.sequences.end(), sequence);
  const auto end =
      std::find_if(begin, row.sequences.end(), [&](int32_t s) { return s != sequence; });
  return {begin - row.sequences.begin(), end - row.sequences.begin()};
}

void append(HubEncoding& row, int32_t id, int32_t type, int32_t sequence, int32_t word,
            TextSpan span) {
  row.ids.push_back(id);
  row.types.push_back(type);
  row.sequences.push_back(sequence);
  row.words.push_back(word);
  row.spans.push_back(span);
  row.mask.push_back(1);
}

void shorten(HubEncoding& row, int64_t most) {
  const size_t size = std::min(row.ids.size(), static_cast<size_t>(most));
  row.ids.resize(size);
  row.types.resize(size);
  row.sequences.resize(size);
  row.words.resize(size);
  row.spans.resize(size);
  row.mask.resize(size);
}

/// Returns the row that `encode` makes, cut if it is longer than `most`.
TextRow hub_row(const HubTokenizer& hub, int64_t most, const auto& encode) {
  TextRow row{encode(HubEncodeOptions{})};
  if (row.length() <= most) return row;
  row.tokens =
      encode(HubEncodeOptions{.max_length = most, .truncate_left = hub.settings().truncate_left});
  row.cut = true;
  return row;
}

/// Throws ValueError if a word alone has other tokens than after a space.
void require_words_alone(const Tokenizer& tokenizer) {
  for (const char* word : {"a", "the", "0"}) {
    require(tokenizer.encode(word) == tokenizer.encode(std::string(" ") + word), kRows,
            "the tokenizer has other tokens for a word after a space than for the same word alone, "
            "and here words are encoded one by one; expected one that has not, such as "
            "--tokenizer FOLDER:add_prefix_space=true of byte-level BPE");
  }
}

/// Throws ValueError unless a window has room for text.
void require_fits(int64_t room, int64_t most, int64_t asked) {
  require(room >= 1, kRows,
          "a row of {} tokens has no room for text beside a question of {} and the template; "
          "expected a --length of {} or more, or a smaller labelled.most_question",
          most, asked, most - room + 1);
}

SpanWindow window_of(const HubEncoding& row, int64_t first) {
  SpanWindow w;
  w.tokens = row.ids;
  w.types = row.types;
  const auto [asked, asked_end] = place_of(row, 0);
  w.question_end = asked == asked_end ? std::min<int64_t>(1, std::ssize(row.ids)) : asked_end;
  const auto [begin, end] = place_of(row, 1);
  w.text_begin = begin;
  w.first = first;
  w.count = end - begin;
  return w;
}

}  // namespace

RowMaker::RowMaker(const std::string& tokenizer, bool separated)
    : name_(tokenizer),
      tokenizer_(open_tokenizer(tokenizer.empty() ? "bytes" : tokenizer)),
      hub_(dynamic_cast<const HubTokenizer*>(tokenizer_.get())),
      special_(tokenizer_->special()),
      vocabulary_(tokenizer_->vocabulary()) {
  if (hub_ != nullptr) {
    padding_ = hub_->pad_id();
    return;
  }
  if (special_.begin < 0) special_.begin = static_cast<int32_t>(vocabulary_++);
  if (separated && special_.separator < 0) special_.separator = static_cast<int32_t>(vocabulary_++);
}

int32_t RowMaker::named_id(const std::string& member) const {
  if (hub_ == nullptr) return -1;
  const auto at = hub_->settings().names.find(member);
  return at == hub_->settings().names.end() ? -1 : hub_->find(at->second);
}

RowMaker RowMaker::of_targets() const {
  if (hub_ == nullptr || hub_->settings().tokenizer_class != "MBartTokenizer") return *this;
  const auto at = hub_->settings().others.find("tgt_lang");
  if (at == hub_->settings().others.end() || !at->second.is_string()) return *this;
  const bool has_settings = tokenizer_path(name_) != name_;
  return RowMaker(
      fmt::format("{}{}src_lang={}", name_, has_settings ? "," : ":", at->second.string()));
}

std::string RowMaker::text_of(std::span<const int32_t> ids) const {
  return hub_ != nullptr ? hub_->text(ids) : tokenizer_->decode(ids);
}

void RowMaker::require_words() const {
  if (hub_ != nullptr) require_words_alone(*tokenizer_);
}

TextRow RowMaker::plain(std::span<const std::string_view> texts, bool each_is_word,
                        int64_t most) const {
  require(most >= 1, kRows, "got rows of at most {} tokens; expected 1 or more", most);
  TextRow row;
  append(row.tokens, special_.begin, 0, -1, -1, {});
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = static_cast<int32_t>(each_is_word ? 0 : i);
    const int64_t shift = each_is_word && i > 0 ? 1 : 0;  // a space before the word
    const std::string spaced = (shift > 0 ? " " : "") + std::string(texts[i]);
    for (const Piece& p : tokenizer_->pieces(spaced)) {
      const bool in_word = each_is_word && (p.end > shift || p.end == p.begin);
      append(row.tokens, p.id, text, text, in_word ? static_cast<int32_t>(i) : -1,
             {std::max<int64_t>(p.begin - shift, 0), std::max<int64_t>(p.end - shift, 0)});
    }
    const bool ends = !each_is_word || i + 1 == texts.size();
    if (ends && special_.separator >= 0) append(row.tokens, special_.separator, text, -1, -1, {});
  }
  row.cut = row.length() > most;
  shorten(row.tokens, most);
  return row;
}

TextRow RowMaker::text(std::string_view text, int64_t most) const {
  if (hub_ == nullptr) return plain({&text, 1}, false, most);
  return hub_row(*hub_, most,
                 [&](const HubEncodeOptions& o) { return hub_->encode_text(text, o); });
}

TextRow RowMaker::pair(std::string_view first, std::string_view second, int64_t most) const {
  const std::string_view both[] = {first, second};
  if (hub_ == nullptr) return plain(both, false, most);
  return hub_row(*hub_, most,
                 [&](const HubEncodeOptions& o) { return hub_->encode_pair(first, second, o); });
}

TextRow RowMaker::words(std::span<const std::string> words, int64_t most) const {
  if (hub_ == nullptr) {
    return plain(std::vector<std::string_view>(words.begin(), words.end()), true, most);
  }
  return hub_row(*hub_, most,
                 [&](const HubEncodeOptions& o) { return hub_->encode_words(words, o); });
}

QuestionRow RowMaker::question(std::string_view question, std::string_view text, int64_t most,
                               int64_t stride, int64_t most_question) const {
  require(most_question >= 1 && stride >= 0, kRows,
          "got questions of at most {} tokens and a stride of {}; expected 1 or more, and no less "
          "than 0",
          most_question, stride);
  QuestionRow row;
  const std::vector<Piece> asked = tokenizer_->pieces(question);
  row.cut = std::ssize(asked) > most_question;
  if (hub_ == nullptr) {
    row.pieces = tokenizer_->pieces(text);
    const auto kept = std::min(std::ssize(asked), most_question);
    const int64_t room = most - kept - 3;  // [CLS] question [SEP] text [SEP]
    require_fits(room, most, kept);
    row.windows = span_windows(asked, row.pieces, nullptr, special_,
                               {.length = most,
                                .stride = std::max<int64_t>(room - std::min(stride, room / 2), 1),
                                .most_question = most_question});
    return row;
  }
  if (row.cut) {
    question =
        question.substr(0, static_cast<size_t>(asked[static_cast<size_t>(most_question - 1)].end));
  }
  const HubEncoding whole = hub_->encode_pair(question, text);
  for (size_t i = 0; i < whole.ids.size(); ++i) {
    if (whole.sequences[i] != 1) continue;
    row.pieces.push_back({whole.ids[i], false, whole.spans[i].begin, whole.spans[i].end});
  }
  if (std::ssize(whole.ids) <= most) {
    row.windows.push_back(window_of(whole, 0));
    return row;
  }
  const int64_t room = most - (std::ssize(whole.ids) - std::ssize(row.pieces));
  require_fits(room, most, std::min(std::ssize(asked), most_question));
  stride = std::min(stride, room / 2);
  const HubEncodeOptions o{
      .max_length = most, .truncation = HubTruncation::only_second, .stride = stride};
  int64_t first = 0;
  for (const HubEncoding& one : hub_->windows(question, text, o)) {
    row.windows.push_back(window_of(one, first));
    first += row.windows.back().count - stride;
  }
  return row;
}

TextRow QuestionRow::row(size_t window) const {
  const SpanWindow& w = windows.at(window);
  TextRow row;
  row.tokens.ids = w.tokens;
  row.tokens.types = w.types;
  row.global_end = w.question_end;
  return row;
}

TextBatch text_batch(std::span<const TextRow> rows, int32_t padding) {
  require<ShapeError>(!rows.empty(), "text_batch", "got no rows; expected one or more");
  TextBatch batch;
  int64_t longest = 1;
  for (const TextRow& row : rows) {
    longest = std::max(longest, row.length());
    batch.equal = batch.equal && row.length() == rows[0].length();
  }
  const Shape shape{std::ssize(rows), longest};
  const auto width = static_cast<size_t>(longest);
  std::vector<int32_t> tokens(rows.size() * width, padding), types(tokens.size(), 0);
  std::vector<uint8_t> marks(tokens.size(), 0);
  std::vector<int64_t> lengths;
  for (size_t b = 0; b < rows.size(); ++b) {
    const TextRow& row = rows[b];
    const auto at = static_cast<long>(b * width);
    std::copy(row.tokens.ids.begin(), row.tokens.ids.end(), tokens.begin() + at);
    std::copy(row.tokens.types.begin(), row.tokens.types.end(), types.begin() + at);
    batch.typed = batch.typed || std::any_of(row.tokens.types.begin(), row.tokens.types.end(),
                                             [](int32_t t) { return t != 0; });
    lengths.push_back(row.length());
    const int64_t end = std::min(std::max<int64_t>(row.length(), 1), row.global_end);
    for (int64_t i = row.global_begin; i < end; ++i) marks[b * width + static_cast<size_t>(i)] = 1;
  }
  batch.tokens = Tensor::from(tokens, shape);
  batch.types = Tensor::from(types, shape);
  batch.lengths = Tensor::from(lengths, {shape[0]});
  batch.global = Tensor::from(marks, shape);
  return batch;
}

}  // namespace longspan
