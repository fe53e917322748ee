#include "data/io/arrays.h"

#include <zlib.h>

#include <cstring>

#include "core/error.h"
#include "core/memory.h"
#include "tests/harness/numpy_file.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::little_endian;
using test::message_of;
using test::npy;
using test::write_bytes;

struct Member {
  std::string name, content;
  bool packed = false;
};

std::string deflated(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// Returns a ZIP archive. `wide` writes sizes in 64 bits, as numpy.savez does for large arrays.
std::string zip(const std::vector<Member>& members, bool wide = false) {
  std::string files, directory;
  for (const Member& m : members) {
    const std::string data = m.packed ? deflated(m.content) : m.content;
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(m.content.data()),
                           static_cast<uInt>(m.content.size()));
    const std::string method = little_endian(m.packed ? 8 : 0, 2);
    const uint64_t none = 0xFFFFFFFF;
    const std::string sizes = little_endian(wide ? none : data.size(), 4) +
                              little_endian(wide ? none : m.content.size(), 4);
    const std::string extra = wide ? little_endian(1, 2) + little_endian(16, 2) +
                                         little_endian(m.content.size(), 8) +
                                         little_endian(data.size(), 8)
                                   : "";
    const std::string common = method + std::string(4, '\0') + little_endian(crc, 4) + sizes +
                               little_endian(m.name.size(), 2) + little_endian(extra.size(), 2);
    const size_t at = files.size();
    files += "PK\3\4" + std::string("\x14\0\0\0", 4) + common + m.name + extra + data;
    directory += "PK\1\2" + std::string("\x14\0\x14\0\0\0", 6) + common + std::string(10, '\0') +
                 little_endian(at, 4) + m.name + extra;
  }
  return files + directory + "PK\5\6" + std::string(4, '\0') + little_endian(members.size(), 2) +
         little_endian(members.size(), 2) + little_endian(directory.size(), 4) +
         little_endian(files.size(), 4) + std::string(2, '\0');
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(Numpy, ReadsNumbersOfEveryKind) {
  const test::Folder folder;
  const std::string path = folder / "a.npy";
  const auto read = [&](const std::string& descr, const std::string& data) {
    write_bytes(path, npy(descr, "(3,)", data));
    const std::vector<NumpyArray> all = read_numpy(path);
    EXPECT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].shape, std::vector<int64_t>{3});
    return std::vector<double>{all[0][0], all[0][1], all[0][2]};
  };
  const std::vector<double> small{0, 1, 7}, negative{-1, 0, 100};
  EXPECT_EQ(read("|u1", bytes_of<uint8_t>({0, 1, 7})), small);
  EXPECT_EQ(read("|b1", bytes_of<uint8_t>({0, 1, 1})), (std::vector<double>{0, 1, 1}));
  EXPECT_EQ(read("|i1", bytes_of<int8_t>({-1, 0, 100})), negative);
  EXPECT_EQ(read("<i2", bytes_of<int16_t>({-1, 0, 100})), negative);
  EXPECT_EQ(read("<i4", bytes_of<int32_t>({-1, 0, 100})), negative);
  EXPECT_EQ(read("<i8", bytes_of<int64_t>({-1, 0, 100})), negative);
  EXPECT_EQ(read("<u4", bytes_of<uint32_t>({0, 1, 7})), small);
  EXPECT_EQ(read("<f4", bytes_of<float>({0.5f, 1, -7})), (std::vector<double>{0.5, 1, -7}));
  EXPECT_EQ(read("<f8", bytes_of<double>({0.1, 1, -7})), (std::vector<double>{0.1, 1, -7}));
}

// The directory of the archive says how much an array unpacks to.
TEST(Numpy, RefusesABombBeforeItUnpacksIt) {
  const test::Folder folder;
  const std::string path = folder / "a.npz";
  std::string noise(300'000, '\0');
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>(i * i * i >> 7);
  std::string file = zip({{"a.npy", noise, true}});
  const std::string size = little_endian(noise.size(), 4), large = little_endian(260 << 20, 4);
  for (size_t at = file.find(size); at != std::string::npos; at = file.find(size)) {
    file.replace(at, 4, large);
  }
  write_bytes(path, file);
  memory_tracker().reset_peak();
  const std::string message = message_of<IoError>([&] { read_numpy(path); });
  EXPECT_TRUE(contains(message, "a.npz: a.npy has ")) << message;
  EXPECT_TRUE(contains(message, "unpacks to 260 MiB or more")) << message;
  EXPECT_TRUE(contains(message, "numpy.savez")) << message;
  EXPECT_LT(memory_tracker().peak()[Category::data], 1 << 20);
}

TEST(Numpy, ReadsShapes) {
  const test::Folder folder;
  const std::string path = folder / "a.npy";
  write_bytes(path, npy("|u1", "(2, 3, 4)", std::string(24, '\1')));
  const NumpyArray a = read_numpy(path).front();
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(a.numel(), 24);
  EXPECT_EQ(a.text(), "uint8[2, 3, 4]");
  write_bytes(path, npy("|u1", "()", "\1"));
  EXPECT_EQ(read_numpy(path).front().numel(), 1);
  // An array with one axis is contiguous in both orders.
  write_bytes(path, npy("|u1", "(1,)", "\1", "True"));
  EXPECT_EQ(read_numpy(path).front().numel(), 1);
}

TEST(Numpy, ReadsArchives) {
  const test::Folder folder;
  const std::string path = folder / "a.npz";
  const std::string x = npy("|u1", "(200,)", std::string(200, '\5')),
                    y = npy("<i4", "(2,)", bytes_of<int32_t>({8, 9}));
  for (const bool packed : {false, true}) {
    for (const bool wide : {false, true}) {
      write_bytes(path, zip({{"x.npy", x, packed}, {"y.npy", y, packed}, {"note.txt", "?"}}, wide));
      const std::vector<NumpyArray> all = read_numpy(path);
      ASSERT_EQ(all.size(), 2u);
      EXPECT_EQ(all[0].name, "x");
      EXPECT_EQ(all[0][199], 5);
      EXPECT_EQ(all[1].name, "y");
      EXPECT_EQ(all[1][1], 9);
    }
  }
}

TEST(Numpy, UnpacksWhatIsAskedFor) {
  const test::Folder folder;
  const std::string path = folder / "a.npz";
  const std::string large = npy("|u1", "(100000,)", std::string(100'000, '\5')),
                    y = npy("<i4", "(2,)", bytes_of<int32_t>({8, 9}));
  std::string bytes = zip({{"large.npy", large, true}, {"y.npy", y, true}});
  bytes[60] ^= 0x55;  // within the packed bytes of an array that is not requested
  write_bytes(path, bytes);
  constexpr std::string_view wanted[] = {"y"}, other[] = {"y", "z"};
  const int64_t before = memory_tracker().live()[Category::data];
  memory_tracker().reset_peak();
  const std::vector<NumpyArray> some = read_numpy(path, wanted);
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0][1], 9);
  EXPECT_LT(memory_tracker().peak()[Category::data] - before, 1000);
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_numpy(path, other); }),
                       path + " has no array z; it has large, y"));
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_numpy(path); }), "large.npy is damaged"));
  write_bytes(path, "<html>");
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_numpy(path, other); }),
                       path + " is no array of NumPy"));
  write_bytes(path, y);
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_numpy(path, other); }),
                       "has one array; expected an .npz file with y, z"));
}

TEST(Numpy, RefusesBadFiles) {
  const test::Folder folder;
  const std::string path = folder / "a.npy";
  const auto message = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    const std::string text = message_of<IoError>([&] { read_numpy(path); });
    EXPECT_TRUE(contains(text, path)) << text;
    return text;
  };
  const std::string good = npy("|u1", "(8,)", std::string(8, '\1'));
  EXPECT_TRUE(contains(message("x"), "is no array of NumPy"));
  EXPECT_TRUE(contains(message(good.substr(0, 20)), "cut off within its header"));
  EXPECT_TRUE(contains(message(good.substr(0, good.size() - 3)),
                       "is cut off: uint8[8] promises 8 bytes of numbers, and 5 are there"));
  EXPECT_TRUE(contains(message(good + "!"), "is damaged: uint8[8] promises 8 bytes"));
  EXPECT_TRUE(contains(message(npy(">i4", "(1,)", "abcd")), "numbers of type '>i4'; expected"));
  EXPECT_TRUE(contains(message(npy("|O", "(1,)", "abcd")), "numbers of type '|O'"));
  EXPECT_TRUE(contains(message(npy("<f2", "(1,)", "ab")), ".astype(numpy.uint8)"));
  EXPECT_TRUE(contains(message(npy("|u1", "(2, 2)", "abcd", "True")), "numpy.ascontiguousarray"));
  EXPECT_TRUE(contains(message(npy("|u1", "(x,)", "abcd")), "has no shape"));
  EXPECT_TRUE(contains(message(npy("<i8", "(4611686018427387904, 9)", "")), "can be counted"));
  std::string other = good;
  other[6] = 9;
  EXPECT_TRUE(contains(message(other), "version 9"));
  // Every truncated archive is an error.
  const std::string archive = zip({{"x.npy", npy("|u1", "(100,)", std::string(100, '\1')), true}});
  for (size_t size = 4; size < archive.size(); ++size) {
    EXPECT_TRUE(contains(message(archive.substr(0, size)), "cut off")) << size;
  }
  std::string damaged = archive;
  damaged[60] ^= 0x55;  // within the packed bytes
  EXPECT_TRUE(contains(message(damaged), "x.npy is damaged"));
  std::string stored = zip({{"x.npy", npy("|u1", "(100,)", std::string(100, '\1'))}});
  const size_t directory = stored.find("PK\1\2");
  for (const size_t at : {directory - 1, directory + 24}) {  // an element; the unpacked size
    std::string flipped = stored;
    flipped[at] ^= 1;
    EXPECT_TRUE(contains(message(flipped), "x.npy is damaged: its")) << at;
  }
  stored[2] ^= 1;  // the file's own header
  EXPECT_TRUE(contains(message(stored), "x.npy is damaged: it does not begin where"));
  std::string strange = archive;
  strange[strange.find("PK\1\2") + 10] = 12;
  EXPECT_TRUE(contains(message(strange), "packed by method 12"));
  // Ten directory entries refer to one file.
  const std::string one = zip({{"x.npy", npy("|u1", "(1000,)", std::string(1000, '\1'))}});
  const size_t entry = one.find("PK\1\2"), end = one.find("PK\5\6");
  std::string shared = one.substr(0, entry);
  for (int i = 0; i < 10; ++i) shared += one.substr(entry, end - entry);
  shared += one.substr(end);
  shared[shared.size() - 22 + 10] = 10;  // the number of entries
  EXPECT_TRUE(contains(message(shared), "its entries hold more bytes than it has"));
}

}  // namespace
}  // namespace longspan
