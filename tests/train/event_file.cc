// Files for TensorBoard, read again as its readers do: lengths, checksums, and the fields of
// events.

#include "train/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "tests/harness/scratch.h"
#include "train/log.h"

namespace longspan::test {
namespace {

uint64_t little(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

/// The bits of CRC-32C one by one, and the mask of TensorFlow.
uint32_t masked(std::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> all;
  while (!file.empty()) {
    const std::string_view length = file.substr(0, 8);
    EXPECT_EQ(little(file.substr(8, 4)), masked(length));
    const std::string_view data = file.substr(12, little(length));
    EXPECT_EQ(little(file.substr(12 + data.size(), 4)), masked(data));
    all.emplace_back(data);
    file.remove_prefix(16 + data.size());
  }
  return all;
}

/// The fields of a message: numbers as they are, texts and messages as bytes.
struct Field {
  uint64_t number;
  std::string bytes;
};
std::multimap<uint64_t, Field> fields_of(std::string_view message) {
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(message[0]);
      message.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  std::multimap<uint64_t, Field> all;
  while (!message.empty()) {
    const uint64_t key = varint();
    const uint64_t wire = key & 7;
    Field field{};
    if (wire == 0) field.number = varint();
    const size_t size = wire == 1 ? 8 : wire == 5 ? 4 : wire == 2 ? varint() : 0;
    field.bytes = message.substr(0, size);
    if (wire == 1 || wire == 5) field.number = little(field.bytes);
    message.remove_prefix(size);
    all.emplace(key >> 3, field);
  }
  return all;
}

std::vector<std::string> events_in(const std::string& folder) {
  std::vector<std::string> all;
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder)) names.push_back(file.path());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    EXPECT_NE(name.find("events.out.tfevents."), std::string::npos);
    for (std::string& record : records_of(read_bytes(name))) all.push_back(std::move(record));
  }
  return all;
}

// The checksum of "123456789" is published as 0xe3069283 (RFC 3720, B.4 has others).
TEST(EventFile, RecordsHaveTheirLengthAndChecksums) {
  const std::string record = tf_record("123456789");
  ASSERT_EQ(record.size(), 25u);
  EXPECT_EQ(little(std::string_view(record).substr(0, 8)), 9u);
  const auto unmasked = std::rotl(
      static_cast<uint32_t>(little(std::string_view(record).substr(21))) - 0xa282ead8u, 15);
  EXPECT_EQ(unmasked, 0xe3069283u);
  EXPECT_EQ(records_of(record + tf_record("")), (std::vector<std::string>{"123456789", ""}));
}

TEST(EventFile, HoldsTheFiguresOfALog) {
  const Folder folder;
  const std::string run = folder / "run";
  {
    Log log(run, {.status = nullptr, .tensorboard = true});
    log.row(300, {{"loss", 1.5}, {"unit", "byte"}, {"tokens", 7}, {"gradient_norm", std::nan("")}});
    log.row(301, {{"valid_bpb", 2.25}});
    log.row(302, {{"unit", "byte"}});  // nothing to draw
  }
  const std::vector<std::string> events = events_in(run + "/tensorboard");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(fields_of(events[0]).find(3)->second.bytes, "brain.Event:2");
  EXPECT_GT(std::bit_cast<double>(fields_of(events[0]).find(1)->second.number), 1.6e9);
  std::map<std::string, float> scalars;
  for (size_t i = 1; i < 3; ++i) {
    const auto event = fields_of(events[i]);
    EXPECT_EQ(event.find(2)->second.number, 299 + i);
    for (const auto& [number, value] : fields_of(event.find(5)->second.bytes)) {
      const auto one = fields_of(value.bytes);
      scalars[one.find(1)->second.bytes] =
          std::bit_cast<float>(static_cast<uint32_t>(one.find(2)->second.number));
    }
  }
  EXPECT_EQ(scalars.size(), 4u) << "texts are no scalars";
  EXPECT_TRUE(std::isnan(scalars["train/gradient_norm"])) << "which TensorBoard marks";
  EXPECT_EQ(scalars["train/loss"], 1.5f);
  EXPECT_EQ(scalars["train/tokens"], 7.f);
  EXPECT_EQ(scalars["valid/bpb"], 2.25f);
}

// A run that goes on says from which step on older files no longer count; none is overwritten.
TEST(EventFile, BeginsAnewWhereARunGoesOn) {
  const Folder folder;
  const std::string path = folder / "events";
  EventFile(path, -1).add(5, {{"loss", 1}});
  EventFile(path, 4).add(5, {{"loss", 2}});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 2);
  const std::vector<std::string> events = events_in(path);
  ASSERT_EQ(events.size(), 5u);
  const auto start = fields_of(events[3]);
  EXPECT_EQ(start.find(2)->second.number, 5u);
  EXPECT_EQ(fields_of(start.find(7)->second.bytes).find(1)->second.number, 1u);
  write_bytes(folder / "file", "");
  EXPECT_THROW(EventFile(folder / "file", -1), IoError);
}

}  // namespace
}  // namespace longspan::test
