#include "train/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <string_view>

#include "core/error.h"

namespace longspan {
namespace {

constexpr std::array<uint32_t, 256> castagnoli = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

uint32_t masked_crc(std::string_view data) {
  uint32_t crc = 0xffffffffu;
  for (const char c : data) crc = castagnoli[(crc ^ static_cast<uint8_t>(c)) & 0xffu] ^ (crc >> 8);
  crc = ~crc;
  return std::rotr(crc, 15) + 0xa282ead8u;
}

/// The bytes of a number, the lowest first.
template <class Number>
std::string bytes_of(Number number) {
  std::string all;
  for (size_t i = 0; i < sizeof(number); ++i) {
    all += static_cast<char>((number >> (8 * i)) & 0xffu);
  }
  return all;
}

/// The fields of protocol buffers: varints, numbers of fixed width, and texts or messages.
std::string varint(uint64_t value) {
  std::string all;
  for (; value >= 128; value >>= 7) all += static_cast<char>(128 | (value & 127));
  all += static_cast<char>(value);
  return all;
}
std::string key(uint64_t field, uint64_t wire) { return varint(field << 3 | wire); }
std::string integer_field(uint64_t field, uint64_t value) { return key(field, 0) + varint(value); }
std::string double_field(uint64_t field, double value) {
  return key(field, 1) + bytes_of(std::bit_cast<uint64_t>(value));
}
std::string float_field(uint64_t field, float value) {
  return key(field, 5) + bytes_of(std::bit_cast<uint32_t>(value));
}
std::string bytes_field(uint64_t field, const std::string& value) {
  return key(field, 2) + varint(value.size()) + value;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string tag_of(const std::string& name) {
  constexpr std::string_view valid = "valid_";
  return name.starts_with(valid) ? "valid/" + name.substr(valid.size()) : "train/" + name;
}

}  // namespace

std::string tf_record(const std::string& data) {
  const std::string length = bytes_of(static_cast<uint64_t>(data.size()));
  return length + bytes_of(masked_crc(length)) + data + bytes_of(masked_crc(data));
}

EventFile::EventFile(const std::string& folder, int64_t step) {
  make_folders(folder, "tensorboard");
  const auto seconds = static_cast<int64_t>(wall_time());
  for (int number = 0; !file_ && number < 1000; ++number) {  // of runs that begin in one second
    path_ = fmt::format("{}/events.out.tfevents.{}.longspan.{}", folder, seconds, number);
    file_ = open_file(path_, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0666);
    require<IoError>(static_cast<bool>(file_) || errno == EEXIST, "tensorboard",
                     "cannot write {}: {}", path_, error_text());
  }
  require<IoError>(static_cast<bool>(file_), "tensorboard", "{} is there already", path_);
  write(bytes_field(3, "brain.Event:2"));
  if (step < 0) return;
  constexpr uint64_t start = 1;
  write(integer_field(2, static_cast<uint64_t>(step + 1)) +
        bytes_field(7, integer_field(1, start)));
}

void EventFile::add(int64_t step, const Members& figures) {
  std::string summary;
  for (const JsonMember& m : figures) {
    if (!m.value.is_number()) continue;
    summary += bytes_field(
        1, bytes_field(1, tag_of(m.name)) + float_field(2, static_cast<float>(m.value.number())));
  }
  if (summary.empty()) return;
  write(integer_field(2, static_cast<uint64_t>(step)) + bytes_field(5, summary));
}

void EventFile::write(const std::string& event) {
  const std::string record = tf_record(double_field(1, wall_time()) + event);
  write_exactly(file_, path_, "tensorboard", record.data(), static_cast<int64_t>(record.size()));
}

}  // namespace longspan
