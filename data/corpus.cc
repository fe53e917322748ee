#include "data/corpus.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "data/io/bytes.h"

namespace longspan {
namespace {

void require_options(int64_t batch, int64_t length, const BatchOptions& options) {
  require(options.objective != Objective::sequence, "data",
          "a file of bytes has no target sequences: choose a decoder or an encoder");
  require(batch >= 1, "data", "batch size {}: expected 1 or more", batch);
  require(length >= 1, "data", "window length {}: expected 1 or more", length);
}

/// Tokens and targets on the host, filled row by row.
class Rows {
 public:
  Rows(int64_t rows, int64_t length)
      : length_(length), batch_{empty(rows, Device{}), empty(rows, Device{})} {
    tokens_ = batch_.tokens.mut().as<int32_t>();
    targets_ = batch_.targets.mut().as<int32_t>();
  }

  std::span<int32_t> tokens(int64_t row) { return part(tokens_, row); }
  std::span<int32_t> targets(int64_t row) { return part(targets_, row); }
  Batch batch(Device device) const {
    if (device == Device{}) return batch_;
    return {copy(batch_.tokens, device), copy(batch_.targets, device)};
  }

 private:
  Tensor empty(int64_t rows, Device device) const {
    return Tensor::empty({rows, length_}, DType::i32, device, Category::data);
  }
  Tensor copy(const Tensor& x, Device device) const {
    Tensor t = empty(x.dim(0), device);
    copy_from_host(device, t.mut().data, x.view().data, x.nbytes());
    return t;
  }
  std::span<int32_t> part(int32_t* values, int64_t row) {
    return {values + row * length_, static_cast<size_t>(length_)};
  }

  int64_t length_;
  Batch batch_;
  int32_t *tokens_, *targets_;
};

/// Fills one window from token `begin` of the split on. With next_token, the targets are the tokens
/// that follow.
void fill(Rows& rows, int64_t row, const CorpusPart& part, int64_t begin,
          const BatchOptions& options, Generator generator) {
  const std::span<int32_t> tokens = rows.tokens(row), targets = rows.targets(row);
  const auto id = [&](int64_t i) { return i < 0 ? part.before : part[i]; };
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t at = begin + static_cast<int64_t>(i);
    tokens[i] = id(at);
    if (options.objective == Objective::next_token) targets[i] = id(at + 1);
  }
  if (options.objective == Objective::masked_token) {
    const Masking masking{.token = options.mask_token, .vocabulary = part.vocabulary};
    mask_window(tokens, targets, generator, masking, options.words);
  }
}

}  // namespace

Split Split::parse(std::string_view text) {
  double shares[3];
  const char* at = text.data();
  const char* end = at + text.size();
  bool ok = true;
  for (int i = 0; i < 3; ++i) {
    if (i > 0) ok = ok && at != end && *at++ == '/';
    const auto result = std::from_chars(at, end, shares[i], std::chars_format::fixed);
    ok = ok && result.ec == std::errc() && shares[i] >= 0;
    at = result.ptr;
  }
  require(ok && at == end, "split", "\"{}\": expected train/valid/test in per cent, e.g. 90/5/5",
          text);
  const double sum = shares[0] + shares[1] + shares[2];
  require(std::abs(sum - 100) < 1e-6, "split", "\"{}\" adds up to {}: expected 100", text, sum);
  return {shares[0], shares[1], shares[2]};
}

std::array<int64_t, 2> Split::cuts(int64_t size) const {
  const auto total = static_cast<double>(size);
  const auto cut = [&](double share) {
    return static_cast<int64_t>(std::clamp(std::floor(total * share / 100), 0.0, total));
  };
  const int64_t first = cut(train);
  return {first, std::max(first, cut(train + valid))};
}

int32_t CorpusPart::operator[](int64_t i) const {
  const uint8_t* at = bytes.data() + i * width;
  if (width == 1) return *at;
  uint32_t id = 0;
  std::memcpy(&id, at, static_cast<size_t>(width));
  return static_cast<int32_t>(id);
}

ByteCorpus ByteCorpus::open(const std::string& path, const Split& split) {
  ByteCorpus corpus;
  corpus.path_ = path;
  const FileBytes file = open_bytes(path, "data");
  require<IoError>(!file.bytes.empty(), "data",
                   "{} is empty: 0 bytes, and a training window needs its length and one more; "
                   "choose a longer file",
                   path);
  corpus.bytes_ = file.bytes;
  const std::array<int64_t, 2> cuts = split.cuts(corpus.size());
  const int64_t ends[] = {cuts[0], cuts[1], corpus.size()};
  constexpr std::string_view names[] = {"train", "valid", "test"};
  int64_t begin = 0;
  for (size_t i = 0; i < 3; ++i) {
    const auto at = static_cast<size_t>(begin), count = static_cast<size_t>(ends[i] - begin);
    corpus.parts_[i] = {file.owner, corpus.bytes_.subspan(at, count),
                        begin > 0 ? corpus.bytes_[at - 1] : 0, std::string(names[i]), path};
    begin = ends[i];
  }
  return corpus;
}

std::string ByteCorpus::checksum() const { return longspan::checksum(bytes_); }

Permutation::Permutation(int64_t size, Generator generator) : size_(size) {
  require(size > 0, "permutation", "size {}: expected 1 or more", size);
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  half_bits_ = (bits + 1) / 2;
  for (int i = 0; i < rounds; ++i) keys_[i] = generator.fork(static_cast<uint64_t>(i)).key;
}

uint64_t Permutation::encrypt(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (const uint64_t key : keys_) {
    const uint64_t mixed = left ^ (Generator{key}.fork(right).key & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

int64_t item_of_row(int64_t row, int64_t size, uint64_t seed) {
  require(row >= 0, "data", "row {} is negative", row);
  const auto epoch = static_cast<uint64_t>(size > 0 ? row / size : 0);
  return Permutation(size, Generator{seed}.fork("order").fork(epoch))[row % size];
}

int64_t Permutation::operator[](int64_t i) const {
  auto x = static_cast<uint64_t>(i);
  do {
    x = encrypt(x);
  } while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

std::vector<int64_t> Permutation::first(int64_t count) const {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back((*this)[i]);
  return all;
}

void mask_window(std::span<int32_t> tokens, std::span<int32_t> targets, Generator generator,
                 const Masking& masking, std::span<const WordRole> words) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (n == 0) return;
  const uint64_t choose_below = drop_threshold(masking.share);
  const uint64_t choose = generator.fork("choose").key, replace = generator.fork("replace").key,
                 other = generator.fork("other").key;
  const auto hide = [&](int64_t i) {
    int32_t& token = tokens[static_cast<size_t>(i)];
    targets[static_cast<size_t>(i)] = token;
    const double draw = to_uniform(philox_word(replace, i));
    if (draw < masking.masked) {
      token = static_cast<int32_t>(masking.token);
    } else if (draw < masking.masked + masking.random) {
      const uint64_t word = uint64_t{philox_word(other, i)} << 32;
      token = static_cast<int32_t>(to_range(word, static_cast<uint64_t>(masking.vocabulary)));
    }
  };
  const std::vector<int64_t> ends = word_ends(tokens, words);
  // Word w is tokens [w ? ends[w - 1] : 0, ends[w]).
  const auto hide_word = [&](size_t w) {
    for (int64_t i = w > 0 ? ends[w - 1] : 0; i < ends[w]; ++i) hide(i);
  };
  std::fill(targets.begin(), targets.end(), ignored_target);
  bool any = false;
  for (size_t w = 0; w < ends.size(); ++w) {
    if (philox_word(choose, static_cast<int64_t>(w)) < choose_below) {
      hide_word(w);
      any = true;
    }
  }
  if (!any) {
    const uint64_t word = philox_word(generator.fork("at least one").key, 0);
    hide_word(static_cast<size_t>(word * ends.size() >> 32));
  }
}

std::vector<int64_t> word_ends(std::span<const int32_t> tokens, std::span<const WordRole> words) {
  const auto role = [&](size_t i) {
    const auto id = static_cast<size_t>(tokens[i]);
    return id < words.size() ? words[id] : WordRole::alone;
  };
  std::vector<int64_t> ends;
  for (size_t i = 1; i <= tokens.size(); ++i) {
    const bool goes_on =
        i < tokens.size() && role(i) == WordRole::inside && role(i - 1) != WordRole::alone;
    if (!goes_on) ends.push_back(static_cast<int64_t>(i));
  }
  return ends;
}

SegmentBatches::SegmentBatches(CorpusPart part, int64_t batch, int64_t length,
                               const BatchOptions& options)
    : part_(std::move(part)), batch_(batch), length_(length), options_(options) {
  require_options(batch, length, options);
  const int64_t record = part_.record;
  require(length % record == 0 || record % length == 0, "length",
          "got {}; {} has records of {}, and a window holds whole ones or an even part of one: "
          "choose a divisor or a multiple",
          length, part_.path, record);
  // The first token of a record is predicted from the one before it, which may be outside the
  // split.
  const int64_t next = options.objective == Objective::next_token && record == 1 ? 1 : 0;
  const int64_t spare = part_.size() - next - length;  // tokens beyond one window
  require(spare >= 0, "data",
          "the {} part of {} has {} {} and one window needs {}: choose a longer file, a shorter "
          "window (--length) or a larger training share (--split)",
          part_.split, part_.path, part_.size(), part_.width == 1 ? "bytes" : "tokens",
          length + next);
  // As many windows as fit from any of the first `length` offsets; windows of records do not shift.
  windows_ = std::max<int64_t>(1, (spare + 1) / length);
  slack_ = part_.size() - next - windows_ * length;
  if (record > 1) {
    windows_ = part_.size() / length;
    slack_ = 0;
  }
}

int64_t SegmentBatches::window_begin(int64_t row) const {
  const int64_t epoch = row / windows_;
  const Generator generator =
      Generator{options_.seed}.fork("order").fork(static_cast<uint64_t>(epoch));
  const auto offset =
      static_cast<int64_t>(generator.fork("offset").key % static_cast<uint64_t>(slack_ + 1));
  const bool shifted = part_.record > 1 && options_.objective == Objective::next_token;
  return offset + Permutation(windows_, generator)[row % windows_] * length_ - (shifted ? 1 : 0);
}

Batch SegmentBatches::at(int64_t step) const {
  require(step >= 0, "data", "step {} is negative", step);
  return from_row(step * batch_);
}

Batch SegmentBatches::from_row(int64_t first) const {
  require(first >= 0, "data", "row {} is negative", first);
  Rows rows(batch_, length_);
  const Generator masks = Generator{options_.seed}.fork("mask").fork(part_.split);
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t row = first + b;
    fill(rows, b, part_, window_begin(row), options_, masks.fork(static_cast<uint64_t>(row)));
  }
  return rows.batch(options_.device);
}

EvaluationSegments::EvaluationSegments(CorpusPart part, int64_t batch, int64_t length,
                                       const BatchOptions& options)
    : part_(std::move(part)), batch_(batch), length_(length), options_(options) {
  require_options(batch, length, options);
  full_segments_ = part_.size() / length;
  full_batches_ = (full_segments_ + batch - 1) / batch;
  rest_ = part_.size() % length;
}

EvaluationSegments::EvaluationSegments(CorpusPart part, int64_t batch, int64_t length,
                                       const BatchOptions& options, std::vector<int64_t> segments)
    : EvaluationSegments(std::move(part), batch, length, options) {
  for (const int64_t s : segments) {
    require(s >= 0 && s < full_segments_, "data", "segment {} of {}", s, full_segments_);
  }
  chosen_ = std::move(segments);
  full_segments_ = std::ssize(chosen_);
  full_batches_ = (full_segments_ + batch - 1) / batch;
  rest_ = 0;
}

Batch EvaluationSegments::operator[](int64_t i) const {
  require(i >= 0 && i < size(), "data", "batch {} of {}", i, size());
  const int64_t first = std::min(i * batch_, full_segments_);
  const int64_t count = i < full_batches_ ? std::min(batch_, full_segments_ - first) : 1;
  const Generator masks = Generator{options_.seed}.fork("mask").fork(part_.split);
  // With next_token, a segment's targets are its tokens, and its inputs the tokens one position
  // earlier.
  const int64_t shift = options_.objective == Objective::next_token ? 1 : 0;
  Rows rows(count, i < full_batches_ ? length_ : rest_);
  for (int64_t b = 0; b < count; ++b) {
    const int64_t segment = chosen_.empty() ? first + b : chosen_[static_cast<size_t>(first + b)];
    fill(rows, b, part_, segment * length_ - shift, options_,
         masks.fork(static_cast<uint64_t>(segment)));
  }
  return rows.batch(options_.device);
}

}  // namespace longspan
