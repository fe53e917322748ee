#include "data/io/bytes.h"

#include <xxhash.h>
#include <zlib.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "data/io/files.h"
#include "data/io/mapped_file.h"

namespace longspan {
namespace {

std::string size_text(int64_t bytes) {
  constexpr int64_t mib = 1 << 20;
  return bytes < mib ? fmt::format("{} bytes", bytes) : fmt::format("{} MiB", bytes / mib);
}

/// Decompresses all members of a gzip file into `take(bytes, count)`. Returns the number of bytes.
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
    if (!inside) {  // after a member: another member, or zero padding of a tape block
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
    total += count;
    require_no_bomb(total, std::ssize(packed), path,
                    "unpack it with gunzip, and give the file that this writes");
    take(buffer.data(), count);
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

/// Decompresses twice, to know the size before it allocates the memory.
Tensor unpack(std::span<const uint8_t> packed, const std::string& path) {
  const int64_t bytes = inflate_all(packed, path, [](const uint8_t*, int64_t) {});
  require<IoError>(bytes > 0, "data", "{} is empty: it unpacks to 0 bytes; choose a longer file",
                   path);
  Tensor data = Tensor::empty({bytes}, DType::u8, {}, Category::data);
  auto* to = data.mut().as<uint8_t>();
  int64_t left = bytes;
  const auto require_same = [&](bool same) {
    require<IoError>(same, "data", "{} has changed while it was being read: start again", path);
  };
  inflate_all(packed, path, [&](const uint8_t* from, int64_t count) {
    require_same(count <= left);
    to = std::copy_n(from, count, to);
    left -= count;
  });
  require_same(left == 0);
  return data;
}

bool is_gzip(std::span<const uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B;
}

}  // namespace

void require_no_bomb(int64_t unpacked, int64_t packed, const std::string& path,
                     std::string_view remedy) {
  constexpr int64_t many = int64_t{256} << 20, ratio = 200;
  require<IoError>(unpacked <= many || unpacked / ratio <= packed, "data",
                   "{} has {} and unpacks to {} or more, over {} times as many, as no file of data "
                   "does: if that is meant, {}",
                   path, size_text(packed), size_text(unpacked), ratio, remedy);
}

FileBytes open_bytes(const std::string& path, std::string_view op) {
  const File file = open_to_read(path, op);
  const int64_t size = size_of_file(file, path, op);
  if (size == 0) return {};
  const FileBytes mapped = map_file(file, path, op, size);
  if (!is_gzip(mapped.bytes)) return mapped;
  auto data = std::make_shared<const Tensor>(unpack(mapped.bytes, path));
  return {data, {data->view().as<uint8_t>(), static_cast<size_t>(data->numel())}};
}

std::string checksum(std::span<const uint8_t> bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

namespace {

/// XXH3 of samples of a byte stream.
class SampleHash {
 public:
  void add(const uint8_t* bytes, int64_t count) {
    while (count > 0) {
      const int64_t inside = at_ % period;
      const bool taken = at_ < whole || inside < sample;
      const int64_t end = at_ < whole ? whole - at_ : (taken ? sample : period) - inside;
      const int64_t n = std::min(count, end);
      if (taken) XXH3_64bits_update(state_.get(), bytes, static_cast<size_t>(n));
      bytes += n;
      count -= n;
      at_ += n;
    }
  }
  /// Must be called after the last byte of each file.
  void finish_file() {
    XXH3_64bits_update(state_.get(), &at_, sizeof at_);
    total_ += std::exchange(at_, 0);
  }
  Fingerprint result() const {
    return {total_, fmt::format("{:016x}", XXH3_64bits_digest(state_.get()))};
  }
  SampleHash() { XXH3_64bits_reset(state_.get()); }

 private:
  static constexpr int64_t whole = 16 << 20, period = 1 << 20, sample = 4096;
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_{XXH3_createState(),
                                                                         XXH3_freeState};
  int64_t at_ = 0, total_ = 0;
};

}  // namespace

Fingerprint fingerprint_of(std::span<const std::string> paths) {
  SampleHash hash;
  for (const std::string& path : paths) {
    const File file = open_to_read(path, "data");
    const int64_t size = size_of_file(file, path, "data");
    if (size > 0) {
      const FileBytes mapped = map_file(file, path, "data", size);
      const std::span<const uint8_t> bytes = mapped.bytes;
      if (is_gzip(bytes)) {
        inflate_all(bytes, path, [&](const uint8_t* from, int64_t n) { hash.add(from, n); });
      } else {
        hash.add(bytes.data(), size);
      }
    }
    hash.finish_file();
  }
  return hash.result();
}

FileBytes own_bytes(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return {};
  auto data = std::make_shared<Tensor>(
      Tensor::empty({static_cast<int64_t>(bytes.size())}, DType::u8, {}, Category::data));
  std::copy(bytes.begin(), bytes.end(), data->mut().as<uint8_t>());
  return {data, {data->view().as<uint8_t>(), bytes.size()}};
}

}  // namespace longspan
