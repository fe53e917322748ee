#include "data/token_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "data/io/bytes.h"
#include "data/io/files.h"

namespace longspan {
namespace {

struct Header {
  char magic[8];
  uint64_t tokenizer, text;
  int64_t count, width, vocabulary;
  uint64_t checksum;  // of the fields before it and the ids
};
constexpr char magic[] = {'L', 'S', 'T', 'O', 'K', 'E', 'N', '4'};
constexpr size_t family = sizeof magic - 1;  // the last character is the version, of ids too

int width_of(int64_t vocabulary) { return vocabulary <= 256 ? 1 : vocabulary <= 65'536 ? 2 : 4; }

uint64_t hash(std::span<const uint8_t> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t checksum_of(const Header& header, std::span<const uint8_t> ids) {
  const uint64_t seed = XXH3_64bits(&header, offsetof(Header, checksum));
  return XXH3_64bits_withSeed(ids.data(), ids.size(), seed);
}

}  // namespace

void write_tokens(const std::string& path, const CorpusPart& part, const TokenSource& source) {
  Header header{{}, source.tokenizer, source.text, part.size(), part.width, part.vocabulary, 0};
  std::memcpy(header.magic, magic, sizeof magic);
  header.checksum = checksum_of(header, part.bytes);
  std::string text(reinterpret_cast<const char*>(&header), sizeof header);
  text.append(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size());
  replace_file(path, text, "tokens");
}

std::optional<CorpusPart> read_tokens(const std::string& path, const TokenSource& source) {
  if (kind_of_path(path, "tokens") == PathKind::nothing) return std::nullopt;
  const FileBytes file = open_bytes(path, "tokens");
  Header header;
  const bool known =
      file.bytes.size() >= sizeof header && std::memcmp(file.bytes.data(), magic, family) == 0;
  require<IoError>(known, "tokens", "{} is not a file of tokens: remove it", path);
  std::memcpy(&header, file.bytes.data(), sizeof header);
  if (std::memcmp(header.magic, magic, sizeof magic) != 0) return std::nullopt;
  if (header.tokenizer != source.tokenizer || header.text != source.text) return std::nullopt;
  const std::span<const uint8_t> ids = file.bytes.subspan(sizeof header);
  const bool whole = header.width == width_of(header.vocabulary) && header.count >= 0 &&
                     header.count == static_cast<int64_t>(ids.size()) / header.width &&
                     ids.size() % static_cast<size_t>(header.width) == 0;
  require<IoError>(whole && checksum_of(header, ids) == header.checksum, "tokens",
                   "{} is damaged or cut off: remove it, and it is made again", path);
  CorpusPart part;
  part.owner = file.owner;
  part.bytes = ids;
  part.path = path;
  part.width = static_cast<int>(header.width);
  part.vocabulary = header.vocabulary;
  return part;
}

namespace {

/// Ids in the width of a file, and the tokens around the two ends of what they stand for.
struct EncodedPart {
  size_t begin = 0, end = 0;  // bytes of the text
  std::vector<uint8_t> ids;
  std::vector<Piece> around_begin, around_end;
};

/// Encodes a text a part at a time as if it were encoded whole. A tokenizer may treat the two ends
/// of a text differently (a space put before it, spaces at its end), so each part is encoded with
/// some text before and after it, and is taken only where it and the next part agree on the tokens
/// around their border; else both are encoded as one.
class PartsEncoder {
 public:
  PartsEncoder(std::string_view text, const Tokenizer& tokenizer)
      : text_(text), tokenizer_(tokenizer), width_(width_of(tokenizer.vocabulary())) {}

  /// Encodes from byte `begin` on, where a part began before, some parts at a time in all threads,
  /// and calls take(ids, end of what they stand for) in order.
  void encode(size_t begin, const std::function<void(std::span<const uint8_t>, size_t)>& take) {
    const auto together = static_cast<size_t>(4 * num_threads());
    std::optional<EncodedPart> last;
    while (begin < text_.size()) {
      std::vector<size_t> bounds{begin};
      while (bounds.size() <= together && bounds.back() < text_.size()) {
        bounds.push_back(end_of_character(bounds.back() + kPart));
      }
      std::vector<EncodedPart> parts(bounds.size() - 1);
      parallel_for(std::ssize(parts), [&](int64_t i) {
        const auto at = static_cast<size_t>(i);
        parts[at] = encoded(bounds[at], bounds[at + 1]);
      });
      for (EncodedPart& part : parts) {
        if (last && last->around_end == part.around_begin) {
          take(last->ids, last->end);
          last = std::move(part);
        } else {
          last = last ? encoded(last->begin, part.end) : std::move(part);
        }
      }
      begin = bounds.back();
    }
    if (last) take(last->ids, last->end);
  }

 private:
  static constexpr size_t kPart = 1 << 20;
  static constexpr size_t kContext = 4096;  // bytes before and after a part; half of it must agree

  /// Returns the first place from `at` on where no UTF-8 character is cut.
  size_t end_of_character(size_t at) const {
    while (at < text_.size() && (static_cast<uint8_t>(text_[at]) & 0xc0) == 0x80) ++at;
    return std::min(at, text_.size());
  }

  /// Encodes bytes [begin, end) of the text. A token belongs to the part in which it begins.
  EncodedPart encoded(size_t begin, size_t end) const {
    const size_t from = begin < kContext ? 0 : end_of_character(begin - kContext);
    const size_t to = end_of_character(std::min(text_.size(), end + kContext));
    EncodedPart part{begin, end, {}, {}, {}};
    part.ids.reserve((end - begin) / 3 * static_cast<size_t>(width_));
    const auto near = [](size_t at, size_t border) {
      return at + kContext / 2 >= border && at < border + kContext / 2;
    };
    for (Piece piece : tokenizer_.pieces(text_.substr(from, to - from))) {
      piece.begin += static_cast<int64_t>(from);
      piece.end += static_cast<int64_t>(from);
      const auto at = static_cast<size_t>(piece.begin);
      if (near(at, begin)) part.around_begin.push_back(piece);
      if (near(at, end)) part.around_end.push_back(piece);
      if (at < begin || (at >= end && end < text_.size())) continue;
      const auto* bytes = reinterpret_cast<const uint8_t*>(&piece.id);
      part.ids.insert(part.ids.end(), bytes, bytes + width_);
    }
    return part;
  }

  std::string_view text_;
  const Tokenizer& tokenizer_;
  int width_;
};

/// A token file in the making: its header has another magic, and in place of the checksum how many
/// bytes of the text its ids stand for.
class PartialTokens {
 public:
  /// Opens the file, with what an earlier process made of the same source. Not writable, or in use:
  /// good() is false.
  PartialTokens(const std::string& cache, const TokenSource& source, int64_t vocabulary)
      : cache_(cache),
        path_(cache + ".partial"),
        file_(open_file(path_, O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (!file_ || flock(file_.get(), LOCK_EX | LOCK_NB) != 0) return;
    struct stat opened, there;  // another process may have finished it before the lock
    if (fstat(file_.get(), &opened) != 0 || ::stat(path_.c_str(), &there) != 0) return;
    if (opened.st_ino != there.st_ino || opened.st_dev != there.st_dev) return;
    header_ = {{}, source.tokenizer, source.text, 0, width_of(vocabulary), vocabulary, 0};
    std::memcpy(header_.magic, partial, sizeof partial);
    const int64_t size = size_of_file(file_, path_, kOp);
    Header before = header_;
    if (size >= static_cast<int64_t>(sizeof before)) {
      read_exactly(file_, path_, kOp, 0, &before, sizeof before);
    }
    Header same = before;
    same.count = header_.count;
    same.checksum = header_.checksum;
    const bool of_this = std::memcmp(&same, &header_, sizeof same) == 0;
    if (of_this && before.count >= 0 && size >= end_of(before)) header_ = before;
    good_ = ftruncate(file_.get(), end_of(header_)) == 0;
    if (good_) write_header();
  }

  bool good() const { return good_; }
  size_t text_done() const { return header_.checksum; }

  /// Appends ids, which with those before stand for `text_end` bytes of the text.
  void append(std::span<const uint8_t> ids, size_t text_end) {
    write_at(ids.data(), std::ssize(ids), end_of(header_));
    header_.count += std::ssize(ids) / header_.width;
    header_.checksum = text_end;
    unsynced_ += std::ssize(ids);
    constexpr int64_t most_unsynced = 16 << 20;
    if (unsynced_ < most_unsynced) return;
    unsynced_ = 0;
    sync(file_, path_, kOp);  // the header must not promise ids that a power failure loses
    write_header();
  }

  /// Makes it the token file.
  void finish() {
    sync(file_, path_, kOp);
    std::memcpy(header_.magic, magic, sizeof magic);
    header_.checksum =
        longspan::checksum_of(header_, open_bytes(path_, kOp).bytes.subspan(sizeof header_));
    write_header();
    sync(file_, path_, kOp);
    require<IoError>(std::rename(path_.c_str(), cache_.c_str()) == 0, kOp, "cannot write {}: {}",
                     cache_, error_text());
  }

 private:
  static constexpr char partial[] = {'L', 'S', 'P', 'A', 'R', 'T', 'S', '2'};
  static constexpr const char* kOp = "tokens";

  static int64_t end_of(const Header& h) {
    return static_cast<int64_t>(sizeof h) + h.count * h.width;
  }
  void write_at(const void* bytes, int64_t count, int64_t at) const {
    require<IoError>(lseek(file_.get(), at, SEEK_SET) == at, kOp, "cannot write {}: {}", path_,
                     error_text());
    write_exactly(file_, path_, kOp, bytes, count);
  }
  void write_header() const { write_at(&header_, sizeof header_, 0); }

  std::string cache_, path_;
  File file_;
  bool good_ = false;
  Header header_{};
  int64_t unsynced_ = 0;
};

}  // namespace

CorpusPart tokenize(const CorpusPart& text, const Tokenizer& tokenizer, const std::string& cache,
                    const TokenProgress& progress) {
  const TokenSource source{tokenizer.hash(), hash(text.bytes)};
  const std::string_view whole(reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size());
  const auto say = [&](size_t done) {
    if (progress) progress(static_cast<int64_t>(done), std::ssize(whole));
  };
  PartsEncoder encoder(whole, tokenizer);
  CorpusPart part;
  std::optional<CorpusPart> kept;
  if (!cache.empty()) kept = read_tokens(cache, source);
  if (!kept && !cache.empty() && !whole.empty()) {
    try {
      PartialTokens file(cache, source, tokenizer.vocabulary());
      if (file.good()) {
        encoder.encode(file.text_done(), [&](std::span<const uint8_t> ids, size_t end) {
          file.append(ids, end);
          say(end);
        });
        file.finish();
      }
    } catch (const IoError&) {  // no room on the disk, or no permission
    }
    kept = read_tokens(cache, source);
  }
  if (kept) {
    part = *kept;
    part.stored = true;
  } else {
    part.vocabulary = tokenizer.vocabulary();
    part.width = width_of(part.vocabulary);
    std::vector<uint8_t> all;
    encoder.encode(0, [&](std::span<const uint8_t> ids, size_t end) {
      all.insert(all.end(), ids.begin(), ids.end());
      say(end);
    });
    const FileBytes own = own_bytes(all);
    part.owner = own.owner;
    part.bytes = own.bytes;
  }
  part.split = text.split;
  part.path = text.path;
  part.symbols = text.size();
  return part;
}

}  // namespace longspan
