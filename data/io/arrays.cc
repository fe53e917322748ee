#include "data/io/arrays.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/tensor.h"

namespace longspan {
namespace {

constexpr const char* kNumpy = "numpy";

uint64_t little_endian(std::span<const uint8_t> bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= uint64_t{bytes[at + i]} << (8 * i);
  return value;
}

bool begins_with(std::span<const uint8_t> bytes, size_t at, std::string_view what) {
  return at <= bytes.size() && what.size() <= bytes.size() - at &&
         std::memcmp(bytes.data() + at, what.data(), what.size()) == 0;
}

/// Returns the text after 'key': in the header, which is a Python dictionary.
std::string_view value_of(std::string_view header, std::string_view key, const std::string& where) {
  const std::string quoted = "'" + std::string(key) + "':";
  const size_t at = header.find(quoted);
  require<IoError>(at != std::string_view::npos, kNumpy, "{}: the header has no {}", where, quoted);
  std::string_view rest = header.substr(at + quoted.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

std::vector<int64_t> shape_of(std::string_view text, const std::string& where) {
  std::vector<int64_t> shape;
  const size_t end = text.find(')');
  bool good = !text.empty() && text[0] == '(' && end != std::string_view::npos;
  for (size_t at = 1; good && at < end;) {
    if (text[at] == ' ' || text[at] == ',') {
      ++at;
      continue;
    }
    int64_t size = -1;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, size);
    good = error == std::errc{} && size >= 0;
    shape.push_back(size);
    at = static_cast<size_t>(stop - text.data());
  }
  require<IoError>(good, kNumpy, "{}: the header has no shape", where);
  return shape;
}

void set_type(NumpyArray& array, std::string_view text, const std::string& where) {
  constexpr std::string_view taken[] = {"b1", "u1", "i1", "u2", "i2", "u4",
                                        "i4", "u8", "i8", "f4", "f8"};
  std::string descr;
  if (!text.empty() && text[0] == '\'') descr = text.substr(1, text.find('\'', 1) - 1);
  const bool order = !descr.empty() && (descr[0] == '<' || descr[0] == '|' || descr[0] == '=');
  const bool known = order && std::find(std::begin(taken), std::end(taken),
                                        std::string_view(descr).substr(1)) != std::end(taken);
  require<IoError>(known, kNumpy,
                   "{} has numbers of type {}; expected bool, integers, float32 or float64 of this "
                   "machine: save it again with .astype(numpy.uint8)",
                   where, descr.empty() ? "unknown" : "'" + descr + "'");
  array.kind = descr[1];
  array.width = descr[2] - '0';
}

/// Parses the bytes of an .npy file.
NumpyArray read_npy(FileBytes file, const std::string& path, const std::string& name) {
  const std::span<const uint8_t> bytes = file.bytes;
  const std::string where = name.empty() ? path : path + ": " + name;
  const bool magic = begins_with(bytes, 0, "\x93NUMPY") && bytes.size() >= 10;
  require<IoError>(magic, kNumpy, "{} is no array of NumPy; expected what numpy.save writes",
                   where);
  const size_t size_bytes = bytes[6] == 1 ? 2 : 4, begin = 8 + size_bytes;
  require<IoError>(bytes[6] >= 1 && bytes[6] <= 3, kNumpy,
                   "{} has version {} of the format; expected 1 to 3", where, bytes[6]);
  require<IoError>(bytes.size() >= begin, kNumpy, "{} is cut off within its header", where);
  const uint64_t length = little_endian(bytes, 8, size_bytes);
  require<IoError>(length <= bytes.size() - begin, kNumpy, "{} is cut off within its header",
                   where);
  const auto* text = reinterpret_cast<const char*>(bytes.data() + begin);
  const std::string_view header(text, static_cast<size_t>(length));

  NumpyArray array{.name = name, .path = path};
  set_type(array, value_of(header, "descr", where), where);
  array.shape = shape_of(value_of(header, "shape", where), where);
  const bool fortran = value_of(header, "fortran_order", where).substr(0, 4) == "True";
  require<IoError>(!fortran || array.shape.size() < 2, kNumpy,
                   "{} is in Fortran order; save numpy.ascontiguousarray() of it", where);
  int64_t wanted = array.width;
  bool countable = true;
  for (const int64_t n : array.shape) {
    countable = countable && !__builtin_mul_overflow(wanted, n, &wanted);
  }
  require<IoError>(countable, kNumpy, "{}: the header promises more numbers than can be counted",
                   where);
  const size_t data = begin + static_cast<size_t>(length);
  const auto there = static_cast<int64_t>(bytes.size() - data);
  require<IoError>(there == wanted, kNumpy,
                   "{} is {}: {} promises {} bytes of numbers, and {} are there", where,
                   there < wanted ? "cut off" : "damaged", array.text(), wanted, there);
  array.data = {std::move(file.owner), bytes.subspan(data)};
  return array;
}

constexpr uint64_t zlib_most = 1 << 30;  // bytes per call, since zlib counts in 32 bits

uint64_t crc_of(std::span<const uint8_t> bytes) {
  uLong crc = crc32(0, nullptr, 0);
  for (uint64_t at = 0; at < bytes.size(); at += zlib_most) {
    crc = crc32(crc, bytes.data() + at,
                static_cast<uInt>(std::min<uint64_t>(bytes.size() - at, zlib_most)));
  }
  return crc;
}

/// A file in a ZIP archive.
struct Entry {
  std::string name;
  uint64_t method = 0, packed = 0, size = 0, at = 0, crc = 0;
};

/// A ZIP archive, read through the directory at its end, including the ZIP64 fields for values that
/// exceed 32 bits.
class Zip {
 public:
  Zip(const FileBytes& file, const std::string& path) : file_(file), path_(path) {}

  std::vector<Entry> entries() const {
    const size_t end = find_end();
    uint64_t count = number(end + 10, 2), at = number(end + 16, 4);
    if ((count == 0xFFFF || at == 0xFFFFFFFF) && end >= 20 && is(end - 20, "PK\x06\x07")) {
      const uint64_t wide = number(end - 12, 8);
      require_there(wide, 56);
      count = number(wide + 32, 8);
      at = number(wide + 48, 8);
    }
    std::vector<Entry> all;
    uint64_t packed = 0;
    for (uint64_t i = 0; i < count; ++i) {
      require_there(at, 46);
      require<IoError>(is(at, "PK\x01\x02"), kNumpy,
                       "{} is damaged: its directory has another entry", path_);
      const uint64_t name = number(at + 28, 2), extra = number(at + 30, 2),
                     note = number(at + 32, 2);
      require_there(at + 46, name + extra + note);
      all.push_back(entry(at, name, extra));
      at += 46 + name + extra + note;
      // Overlapping entries could decompress to the square of the file size.
      packed += std::min<uint64_t>(all.back().packed, file_.bytes.size());
      require<IoError>(packed <= file_.bytes.size(), kNumpy,
                       "{} is damaged: its entries hold more bytes than it has", path_);
    }
    return all;
  }

  /// Returns the content of an archive entry, decompressed if necessary.
  FileBytes content(const Entry& e) const {
    require_there(e.at, 30);
    require<IoError>(is(e.at, "PK\x03\x04"), kNumpy,
                     "{}: {} is damaged: it does not begin where the directory says", path_,
                     e.name);
    const uint64_t begin = e.at + 30 + number(e.at + 26, 2) + number(e.at + 28, 2);
    require_there(begin, e.packed);
    const std::span<const uint8_t> packed =
        file_.bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(e.packed));
    if (e.method == 0) {
      require<IoError>(e.packed == e.size && crc_of(packed) == e.crc, kNumpy,
                       "{}: {} is damaged: its {} bytes are not those of its checksum", path_,
                       e.name, e.packed);
      return {file_.owner, packed};
    }
    require<IoError>(e.method == 8, kNumpy, "{}: {} is packed by method {}; expected 0 or 8", path_,
                     e.name, e.method);
    return unpacked(e, packed);
  }

 private:
  bool is(uint64_t at, std::string_view what) const {
    return begins_with(file_.bytes, static_cast<size_t>(at), what);
  }
  uint64_t number(uint64_t at, size_t count) const {
    require_there(at, count);
    return little_endian(file_.bytes, static_cast<size_t>(at), count);
  }
  void require_there(uint64_t at, uint64_t count) const {
    const uint64_t size = file_.bytes.size();
    require<IoError>(at <= size && count <= size - at, kNumpy, "{} is cut off or damaged", path_);
  }

  /// Returns where the last record of the archive begins, before a comment of up to 64 KiB.
  size_t find_end() const {
    const size_t size = file_.bytes.size();
    for (size_t back = 22; back <= std::min<size_t>(size, 22 + 0xFFFF); ++back) {
      if (is(size - back, "PK\x05\x06")) return size - back;
    }
    fail<IoError>(kNumpy, "{} is cut off: the directory at its end is missing", path_);
  }

  Entry entry(uint64_t at, uint64_t name, uint64_t extra) const {
    Entry e;
    e.name.assign(reinterpret_cast<const char*>(file_.bytes.data() + at + 46),
                  static_cast<size_t>(name));
    require<IoError>((number(at + 8, 2) & 1) == 0, kNumpy, "{}: {} is encrypted", path_, e.name);
    e.method = number(at + 10, 2);
    e.crc = number(at + 16, 4);
    e.packed = number(at + 20, 4);
    e.size = number(at + 24, 4);
    e.at = number(at + 42, 4);
    const uint64_t end = at + 46 + name + extra;
    for (uint64_t field = at + 46 + name; field + 4 <= end; field += 4 + number(field + 2, 2)) {
      if (number(field, 2) != 1) continue;
      uint64_t next = field + 4;
      for (uint64_t* value : {&e.size, &e.packed, &e.at}) {
        if (*value != 0xFFFFFFFF) continue;
        *value = number(next, 8);
        next += 8;
      }
    }
    return e;
  }

  FileBytes unpacked(const Entry& e, std::span<const uint8_t> packed) const {
    // Deflate compresses by a factor of at most 1,032.
    require<IoError>(e.size / 1032 <= packed.size(), kNumpy, "{}: {} is damaged", path_, e.name);
    require_no_bomb(static_cast<int64_t>(e.size), std::ssize(packed),
                    fmt::format("{}: {}", path_, e.name), "save it with numpy.savez, unpacked");
    auto data = std::make_shared<Tensor>(
        Tensor::empty({static_cast<int64_t>(e.size)}, DType::u8, {}, Category::data));
    auto* to = data->mut().as<uint8_t>();
    z_stream stream{};
    require<OutOfMemory>(inflateInit2(&stream, -15) == Z_OK, kNumpy, "no memory for zlib");
    const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
    uint64_t read = 0, written = 0;
    int result = Z_OK;
    while (result == Z_OK) {
      stream.next_in = const_cast<uint8_t*>(packed.data() + read);
      stream.avail_in = static_cast<uInt>(std::min<uint64_t>(packed.size() - read, zlib_most));
      stream.next_out = to + written;
      stream.avail_out = static_cast<uInt>(std::min<uint64_t>(e.size - written, zlib_most));
      const uint64_t in = stream.avail_in, out = stream.avail_out;
      result = inflate(&stream, Z_NO_FLUSH);
      read += in - stream.avail_in;
      written += out - stream.avail_out;
    }
    const std::span<const uint8_t> all{to, static_cast<size_t>(e.size)};
    require<IoError>(result == Z_STREAM_END && written == e.size && crc_of(all) == e.crc, kNumpy,
                     "{}: {} is damaged after {} of {} unpacked bytes", path_, e.name, written,
                     e.size);
    return {data, all};
  }

  const FileBytes& file_;
  const std::string& path_;
};

/// The array name of an entry; empty if it is not an array.
std::string_view array_name(const Entry& e) {
  constexpr std::string_view end = ".npy";
  const std::string_view name = e.name;
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : std::string_view();
}

std::string array_names(const std::vector<Entry>& entries) {
  std::vector<std::string_view> names;
  for (const Entry& e : entries) {
    if (!array_name(e).empty()) names.push_back(array_name(e));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names.begin(), names.end(), ", "));
}

}  // namespace

int64_t NumpyArray::numel() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

std::string NumpyArray::text() const {
  const char* names[] = {"uint", "int", "float"};
  const size_t which = kind == 'u' ? 0 : kind == 'i' ? 1 : 2;
  return fmt::format("{}[{}]", kind == 'b' ? "bool" : fmt::format("{}{}", names[which], 8 * width),
                     fmt::join(shape.begin(), shape.end(), ", "));
}

double NumpyArray::operator[](int64_t i) const {
  const auto at = static_cast<size_t>(i * width), count = static_cast<size_t>(width);
  const uint64_t bits = little_endian(data.bytes, at, count);
  if (kind == 'f' && width == 8) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  if (kind == 'f') {
    float value;
    const auto low = static_cast<uint32_t>(bits);
    std::memcpy(&value, &low, sizeof value);
    return double{value};
  }
  if (kind != 'i') return static_cast<double>(bits);
  const int unused = static_cast<int>(64 - 8 * width);
  return static_cast<double>(static_cast<int64_t>(bits << unused) >> unused);
}

std::vector<NumpyArray> read_numpy(const std::string& path) {
  const FileBytes file = open_bytes(path, kNumpy);
  if (!begins_with(file.bytes, 0, "PK")) return {read_npy(file, path, "")};
  const Zip zip(file, path);
  std::vector<NumpyArray> arrays;
  for (const Entry& e : zip.entries()) {
    if (!array_name(e).empty()) {
      arrays.push_back(read_npy(zip.content(e), path, std::string(array_name(e))));
    }
  }
  return arrays;
}

std::vector<NumpyArray> read_numpy(const std::string& path,
                                   std::span<const std::string_view> names) {
  const FileBytes file = open_bytes(path, kNumpy);
  if (!begins_with(file.bytes, 0, "PK")) {
    read_npy(file, path, "");  // throws if it is not an .npy file either
    fail<IoError>(kNumpy, "{} has one array; expected an .npz file with {}", path,
                  fmt::join(names.begin(), names.end(), ", "));
  }
  const Zip zip(file, path);
  const std::vector<Entry> entries = zip.entries();
  std::vector<NumpyArray> arrays;
  for (const std::string_view name : names) {
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const Entry& e) { return array_name(e) == name; });
    require<IoError>(found != entries.end(), kNumpy, "{} has no array {}; it has {}", path, name,
                     array_names(entries));
    arrays.push_back(read_npy(zip.content(*found), path, std::string(name)));
  }
  return arrays;
}

}  // namespace longspan
