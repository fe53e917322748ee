#include "train/data.h"

#include <sys/mman.h>
#include <xxhash.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "train/files.h"

namespace longspan {
namespace {

/// A file's bytes, mapped.
class Mapping {
 public:
  Mapping(const File& file, const std::string& path, int64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, file.get(), 0);
    require<IoError>(data_ != MAP_FAILED, "data", "cannot map {}: {}", path, error_text());
  }
  ~Mapping() { munmap(data_, static_cast<size_t>(bytes_)); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const uint8_t> bytes() const {
    return {static_cast<const uint8_t*>(data_), static_cast<size_t>(bytes_)};
  }

 private:
  void* data_;
  int64_t bytes_;
};

/// Unpacks all members of a gzip file into `take(bytes, count)`. Returns the number of bytes.
template <class F>
int64_t inflate_all(std::span<const uint8_t> packed, const std::string& path, F&& take) {
  z_stream stream{};
  require<OutOfMemory>(inflateInit2(&stream, 15 + 16) == Z_OK, "data", "no memory for zlib");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  std::vector<uint8_t> buffer(1 << 18);
  int64_t total = 0;
  size_t at = 0;  // bytes of `packed` given to zlib
  bool inside = true;
  while (inside || at < packed.size() || stream.avail_in > 0) {
    if (stream.avail_in == 0) {
      const size_t count = std::min<size_t>(packed.size() - at, 1 << 30);
      stream.next_in = const_cast<uint8_t*>(packed.data() + at);
      stream.avail_in = static_cast<uInt>(count);
      at += count;
    }
    if (!inside) {  // after a member: another one, or zeros that fill a block of a tape
      const bool zeros = std::all_of(stream.next_in, stream.next_in + stream.avail_in,
                                     [](uint8_t byte) { return byte == 0; });
      if (zeros) {
        stream.avail_in = 0;
        continue;
      }
      inflateReset(&stream);
      inside = true;
    }
    stream.next_out = buffer.data();
    stream.avail_out = static_cast<uInt>(buffer.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    const auto count = static_cast<int64_t>(buffer.size() - stream.avail_out);
    take(buffer.data(), count);
    total += count;
    if (result == Z_STREAM_END) {
      inside = false;
    } else if (result == Z_BUF_ERROR || (result == Z_OK && stream.avail_in == 0 &&
                                         at == packed.size() && stream.avail_out > 0)) {
      fail<IoError>("data", "{} is cut off: the gzip data end after {} unpacked bytes", path,
                    total);
    } else if (result != Z_OK) {
      fail<IoError>("data", "{} is damaged after {} unpacked bytes: {}", path, total,
                    stream.msg != nullptr ? stream.msg : "not gzip data");
    }
  }
  return total;
}

/// The unpacked bytes. Unpacks twice, to know the size before taking the memory.
Tensor unpack(std::span<const uint8_t> packed, const std::string& path) {
  const int64_t bytes = inflate_all(packed, path, [](const uint8_t*, int64_t) {});
  require<IoError>(bytes > 0, "data", "{} is empty: it unpacks to 0 bytes; choose a longer file",
                   path);
  Tensor data = Tensor::empty({bytes}, DType::u8, {}, Category::data);
  auto* to = data.mut().as<uint8_t>();
  inflate_all(packed, path,
              [&](const uint8_t* from, int64_t count) { to = std::copy_n(from, count, to); });
  return data;
}

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

/// One window from byte `begin` of the part on; with next_token, targets are those bytes'
/// followers.
void fill(Rows& rows, int64_t row, const BytePart& part, int64_t begin, const BatchOptions& options,
          Generator generator) {
  const std::span<int32_t> tokens = rows.tokens(row), targets = rows.targets(row);
  const auto byte = [&](int64_t i) {
    return i < 0 ? part.before : int32_t{part.bytes[static_cast<size_t>(i)]};
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t at = begin + static_cast<int64_t>(i);
    tokens[i] = byte(at);
    if (options.objective == Objective::next_token) targets[i] = byte(at + 1);
  }
  if (options.objective == Objective::masked_token) {
    mask_window(tokens, targets, generator, options.mask_token);
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

ByteCorpus ByteCorpus::open(const std::string& path, const Split& split) {
  ByteCorpus corpus;
  corpus.path_ = path;
  const File file = open_to_read(path, "data");
  const int64_t size = size_of_file(file, path, "data");
  require<IoError>(size > 0, "data",
                   "{} is empty: 0 bytes, and a training window needs its length and one more; "
                   "choose a longer file",
                   path);
  std::shared_ptr<const void> owner;
  auto mapping = std::make_shared<const Mapping>(file, path, size);
  if (size >= 2 && mapping->bytes()[0] == 0x1F && mapping->bytes()[1] == 0x8B) {
    auto data = std::make_shared<const Tensor>(unpack(mapping->bytes(), path));
    corpus.bytes_ = {data->view().as<uint8_t>(), static_cast<size_t>(data->numel())};
    owner = data;
  } else {
    corpus.bytes_ = mapping->bytes();
    owner = mapping;
  }

  const auto total = static_cast<double>(corpus.size());
  const auto cut = [&](double share) {
    return static_cast<size_t>(std::clamp(std::floor(total * share / 100), 0.0, total));
  };
  const size_t ends[] = {cut(split.train), cut(split.train + split.valid), corpus.bytes_.size()};
  constexpr std::string_view names[] = {"train", "valid", "test"};
  size_t begin = 0;
  for (size_t i = 0; i < 3; ++i) {
    const size_t end = std::max(begin, ends[i]);
    corpus.parts_[i] = {owner, corpus.bytes_.subspan(begin, end - begin),
                        begin > 0 ? corpus.bytes_[begin - 1] : 0, std::string(names[i]), path};
    begin = end;
  }
  return corpus;
}

std::string ByteCorpus::checksum() const {
  return fmt::format("{:016x}", XXH3_64bits(bytes_.data(), bytes_.size()));
}

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

int64_t Permutation::operator[](int64_t i) const {
  auto x = static_cast<uint64_t>(i);
  do {
    x = encrypt(x);
  } while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

void mask_window(std::span<int32_t> tokens, std::span<int32_t> targets, Generator generator,
                 int64_t mask_token) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (n == 0) return;
  constexpr uint32_t chosen_below = 644245094;  // 0.15 * 2^32
  const uint64_t choose = generator.fork("choose").key, replace = generator.fork("replace").key;
  const auto hide = [&](int64_t i) {
    int32_t& token = tokens[static_cast<size_t>(i)];
    targets[static_cast<size_t>(i)] = token;
    const uint32_t word = philox_word(replace, i);
    const float draw = to_uniform(word);
    if (draw < 0.8f) {
      token = static_cast<int32_t>(mask_token);
    } else if (draw < 0.9f) {
      token = static_cast<int32_t>(word & 0xFF);  // bits that the draw does not see
    }
  };
  bool any = false;
  for (int64_t i = 0; i < n; ++i) {
    targets[static_cast<size_t>(i)] = ignored_target;
    if (philox_word(choose, i) < chosen_below) {
      hide(i);
      any = true;
    }
  }
  if (!any) {
    const uint64_t word = philox_word(generator.fork("at least one").key, 0);
    hide(static_cast<int64_t>(word * static_cast<uint64_t>(n) >> 32));
  }
}

SegmentBatches::SegmentBatches(BytePart part, int64_t batch, int64_t length,
                               const BatchOptions& options)
    : part_(std::move(part)), batch_(batch), length_(length), options_(options) {
  require_options(batch, length, options);
  const int64_t next = options.objective == Objective::next_token ? 1 : 0;
  const int64_t spare = part_.size() - next - length;  // bytes beyond one window
  require(spare >= 0, "data",
          "the {} part of {} has {} bytes and one window needs {}: choose a longer file, a shorter "
          "window "
          "(--length) or a larger training share (--split)",
          part_.split, part_.path, part_.size(), length + next);
  // As many as fit from any of the first `length` offsets.
  windows_ = std::max<int64_t>(1, (spare + 1) / length);
  slack_ = part_.size() - next - windows_ * length;
}

int64_t SegmentBatches::window_begin(int64_t row) const {
  const int64_t epoch = row / windows_;
  const Generator generator =
      Generator{options_.seed}.fork("order").fork(static_cast<uint64_t>(epoch));
  const auto offset =
      static_cast<int64_t>(generator.fork("offset").key % static_cast<uint64_t>(slack_ + 1));
  return offset + Permutation(windows_, generator)[row % windows_] * length_;
}

Batch SegmentBatches::at(int64_t step) const {
  require(step >= 0, "data", "step {} is negative", step);
  Rows rows(batch_, length_);
  const Generator masks = Generator{options_.seed}.fork("mask").fork(part_.split);
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t row = step * batch_ + b;
    fill(rows, b, part_, window_begin(row), options_, masks.fork(static_cast<uint64_t>(row)));
  }
  return rows.batch(options_.device);
}

EvaluationSegments::EvaluationSegments(BytePart part, int64_t batch, int64_t length,
                                       const BatchOptions& options)
    : part_(std::move(part)), batch_(batch), length_(length), options_(options) {
  require_options(batch, length, options);
  full_segments_ = part_.size() / length;
  full_batches_ = (full_segments_ + batch - 1) / batch;
  rest_ = part_.size() % length;
}

Batch EvaluationSegments::operator[](int64_t i) const {
  require(i >= 0 && i < size(), "data", "batch {} of {}", i, size());
  const int64_t first = std::min(i * batch_, full_segments_);
  const int64_t count = i < full_batches_ ? std::min(batch_, full_segments_ - first) : 1;
  const Generator masks = Generator{options_.seed}.fork("mask").fork(part_.split);
  // With next_token, a segment's targets are its bytes and its tokens those one place before.
  const int64_t shift = options_.objective == Objective::next_token ? 1 : 0;
  Rows rows(count, i < full_batches_ ? length_ : rest_);
  for (int64_t b = 0; b < count; ++b) {
    const int64_t segment = first + b;
    fill(rows, b, part_, segment * length_ - shift, options_,
         masks.fork(static_cast<uint64_t>(segment)));
  }
  return rows.batch(options_.device);
}

}  // namespace longspan
