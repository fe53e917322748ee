#include "data/io/formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "data/io/files.h"

namespace longspan {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

/// Calls take(line, number) for each line, without its end and a byte order mark before the first.
template <class F>
void for_each_line(std::string_view text, F&& take) {
  text = without_byte_order_mark(text);
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    take(line, number);
    begin = end + 1;
  }
}

uint32_t little_endian_at(std::span<const uint8_t> bytes, size_t at, size_t count) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= uint32_t{bytes[at + i]} << (8 * i);
  return value;
}

void require_records(int64_t bytes, int64_t record, const std::string& path) {
  require<IoError>(bytes > 0 && bytes % record == 0, "images",
                   "{} has {} bytes, which is not whole pictures of {}: {} are missing from the "
                   "last; expected a complete file",
                   path, bytes, record, bytes == 0 ? record : record - bytes % record);
}

std::vector<std::string> sentences(std::string_view line) {
  constexpr std::string_view separator = "<S_SEP>";
  std::vector<std::string> all;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(separator, begin), line.size());
    std::string_view sentence = line.substr(begin, end - begin);
    while (!sentence.empty() && sentence.front() == ' ') sentence.remove_prefix(1);
    while (!sentence.empty() && sentence.back() == ' ') sentence.remove_suffix(1);
    if (!sentence.empty()) all.emplace_back(sentence);
    begin = end + separator.size();
  }
  return all;
}

}  // namespace

Sequences read_fasta(std::string_view text, std::string_view alphabet, char other,
                     const std::string& path, Headers headers) {
  std::array<int16_t, 256> ids;
  ids.fill(-1);
  for (size_t id = 0; id < alphabet.size(); ++id) {
    ids[static_cast<uint8_t>(alphabet[id])] = static_cast<int16_t>(id);
  }
  Sequences out;
  size_t header = 0;  // line of the header
  std::string_view name;
  int64_t begin = 0;  // first id of the record
  const auto close = [&] {
    const auto end = static_cast<int64_t>(out.ids.size());
    require<IoError>(end > begin, "fasta", "{}: the record of line {} is empty", path, header);
    out.ends.push_back(end);
    if (headers == Headers::keep) out.headers.emplace_back(name);
    out.lines.push_back(static_cast<int64_t>(header));
    begin = end;
  };
  for_each_line(text, [&](std::string_view line, size_t number) {
    if (!line.empty() && line[0] == '>') {
      if (header > 0 || !out.ids.empty()) close();
      header = number;
      name = line.substr(1);
      return;
    }
    for (const char c : line) {
      if (c == '*' || c == '-' || c == ' ') continue;
      require<IoError>(is_letter(c), "fasta", "{}: line {} has the byte 0x{:02x}; expected letters",
                       path, number, static_cast<uint8_t>(c));
      int16_t id = ids[static_cast<uint8_t>(upper(c))];
      if (id < 0) {
        id = ids[static_cast<uint8_t>(other)];
        ++out.unknown;
        if (out.others.find(upper(c)) == std::string::npos) {
          out.others += upper(c);
          out.other_lines.push_back(static_cast<int64_t>(number));
        }
      }
      out.ids.push_back(static_cast<uint8_t>(id));
    }
  });
  close();
  return out;
}

Recording read_wav(std::span<const uint8_t> bytes, const std::string& path) {
  const auto is = [&](size_t at, const char* name) {
    return at + 4 <= bytes.size() && std::memcmp(bytes.data() + at, name, 4) == 0;
  };
  require<IoError>(is(0, "RIFF") && is(8, "WAVE"), "wav", "{} is not a WAV file", path);
  Recording out;
  constexpr size_t head = 8;  // name and length of a chunk
  for (size_t at = 12; at + head <= bytes.size();) {
    const size_t length = little_endian_at(bytes, at + 4, 4), begin = at + head;
    const size_t there = bytes.size() - begin;
    if (is(at, "fmt ")) {
      require<IoError>(length >= 16 && length <= there, "wav", "{}: the format is cut off", path);
      const uint32_t kind = little_endian_at(bytes, begin, 2),
                     channels = little_endian_at(bytes, begin + 2, 2),
                     bits = little_endian_at(bytes, begin + 14, 2);
      require<IoError>(kind == 1 && channels == 1 && bits == 16, "wav",
                       "{} has format {}, {} channels and {} bits; expected PCM (1), one channel "
                       "and 16 bits",
                       path, kind, channels, bits);
      out.rate = little_endian_at(bytes, begin + 4, 4);
    } else if (is(at, "data")) {
      require<IoError>(out.rate > 0, "wav", "{} has samples and no format before them", path);
      require<IoError>(length <= there && length % 2 == 0, "wav",
                       "{} is cut off: {} bytes of samples, of the {} that it promises", path,
                       there, length);
      out.samples.resize(length / 2);
      for (size_t i = 0; i < out.samples.size(); ++i) {
        out.samples[i] = static_cast<int16_t>(little_endian_at(bytes, begin + 2 * i, 2));
      }
      return out;
    }
    at = begin + length + length % 2;
  }
  fail<IoError>("wav", "{} is cut off: there are no samples", path);
}

uint8_t mu_law(int16_t sample) {
  const double x = sample / 32768.0;
  const double f = std::copysign(std::log1p(255 * std::abs(x)) / std::log(256.0), x);
  return static_cast<uint8_t>(std::floor((f + 1) / 2 * 255 + 0.5));
}

double from_mu_law(uint8_t code) {
  const double f = 2 * (code / 255.0) - 1;
  return std::copysign(std::expm1(std::abs(f) * std::log(256.0)) / 255, f);
}

Pictures read_cifar(std::span<const uint8_t> bytes, const std::string& path) {
  constexpr int64_t width = 32, plane = width * width, record = 1 + 3 * plane;
  require_records(static_cast<int64_t>(bytes.size()), record, path);
  Pictures out{.width = width, .values = {}, .labels = {}};
  const auto count = static_cast<int64_t>(bytes.size()) / record;
  out.values.resize(static_cast<size_t>(3 * plane * count));
  uint8_t* to = out.values.data();
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* from = bytes.data() + i * record;
    out.labels.push_back(*from++);
    for (int64_t pixel = 0; pixel < plane; ++pixel) {
      for (int64_t channel = 0; channel < 3; ++channel) *to++ = from[channel * plane + pixel];
    }
  }
  return out;
}

Pictures read_pixels(std::span<const uint8_t> bytes, int64_t width, const std::string& path) {
  require_records(static_cast<int64_t>(bytes.size()), 3 * width * width, path);
  return {.width = width, .values = {bytes.begin(), bytes.end()}, .labels = {}};
}

std::vector<Document> read_documents(std::string_view articles, std::string_view summaries,
                                     const std::string& path) {
  std::vector<Document> all = read_documents(articles);
  size_t count = 0;
  for_each_line(summaries, [&](std::string_view line, size_t) {
    if (count < all.size()) all[count].summary = sentences(line);
    ++count;
  });
  require<IoError>(count == all.size(), "documents", "{}: {} articles and {} summaries", path,
                   all.size(), count);
  return all;
}

std::vector<Document> read_documents(std::string_view articles) {
  std::vector<Document> all;
  for_each_line(articles, [&](std::string_view line, size_t) {
    all.push_back({.article = sentences(line), .summary = {}});
  });
  return all;
}

void read_labels(std::string_view labels, const std::string& path, std::vector<Document>& to) {
  size_t count = 0;
  for_each_line(labels, [&](std::string_view line, size_t number) {
    std::vector<uint8_t> own;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == ' ') continue;
      const bool alone = i + 1 == line.size() || line[i + 1] == ' ';
      require<IoError>(alone && (line[i] == 'T' || line[i] == 'F'), "labels",
                       "{}: line {} has other text than T and F between spaces", path, number);
      own.push_back(line[i] == 'T' ? 1 : 0);
    }
    if (count < to.size()) {
      require<IoError>(own.size() == to[count].article.size(), "labels",
                       "{}: line {} has {} labels, and the article {} sentences that are not "
                       "empty; expected one for each",
                       path, number, own.size(), to[count].article.size());
      to[count].labels = std::move(own);
    }
    ++count;
  });
  require<IoError>(count == to.size(), "labels", "{}: {} lines for {} documents", path, count,
                   to.size());
}

}  // namespace longspan
