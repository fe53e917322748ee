#include "train/state.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/generator.h"
#include "data/io/files.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::read_bytes;
using test::write_bytes;

/// Returns a tensor of every dtype, with values shifted by `seed`.
TensorList some_tensors(float seed = 0) {
  const auto ramp = [&](int64_t n, auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<T> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<T>(static_cast<float>(i) + seed));
    return values;
  };
  return {{"embedding.weight", Tensor::from(ramp(12, TypeTag<float>{}), {3, 4})},
          {"bytes", Tensor::from(ramp(5, TypeTag<uint8_t>{}), {5})},
          {"double", Tensor::from(ramp(3, TypeTag<double>{}), {3, 1})},
          {"half", Tensor::from(ramp(3, TypeTag<f16>{}), {3})},
          {"brain", Tensor::from(ramp(1, TypeTag<bf16>{}), {1, 1, 1})},
          {"long", Tensor::from(ramp(2, TypeTag<int64_t>{}), {2})},
          {"int", Tensor::from(ramp(1, TypeTag<int32_t>{}), Shape{})},
          {"none", Tensor::empty({0, 7})},
          {"name with \"quotes\" and \xC3\xA9", Tensor::from(ramp(2, TypeTag<float>{}), {2})}};
}

std::string bytes_of(const Tensor& tensor) {
  std::string bytes(static_cast<size_t>(tensor.nbytes()), '\0');
  std::memcpy(bytes.data(), tensor.view().data, bytes.size());
  return bytes;
}

void expect_same(const TensorList& a, const TensorList& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const NamedTensor& x : a) {
    bool found = false;
    for (const NamedTensor& y : b) {
      if (x.name != y.name) continue;
      found = true;
      EXPECT_EQ(x.tensor.shape(), y.tensor.shape()) << x.name;
      EXPECT_EQ(x.tensor.dtype(), y.tensor.dtype()) << x.name;
      EXPECT_EQ(bytes_of(x.tensor), bytes_of(y.tensor)) << x.name;
    }
    EXPECT_TRUE(found) << x.name;
  }
}

/// Returns a file of header length, header and data.
std::string compose(std::string_view header, std::string_view data) {
  uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + std::string(header) + std::string(data);
}

TEST(TensorFile, RoundTrip) {
  const Folder folder;
  const TensorList tensors = some_tensors();
  write_tensors(folder / "x", tensors, {{"note", "any text"}});
  expect_same(read_tensors(folder / "x"), tensors);

  const TensorHeader header = read_tensor_header(folder / "x", Checksums::required);
  EXPECT_EQ(header.data_begin % 8, 0);
  EXPECT_EQ(header.metadata.front(), (std::pair<std::string, std::string>("note", "any text")));
  for (const TensorEntry& entry : header.entries) {
    EXPECT_EQ(entry.begin % size_of(entry.dtype), 0) << entry.name;
  }

  const TensorList target = some_tensors(9);
  load_tensors(folder / "x", target, Checksums::required);
  expect_same(target, tensors);
  write_tensors(folder / "empty", {});
  EXPECT_TRUE(read_tensors(folder / "empty").empty());
}

TEST(TensorFile, BytesDependOnTheTensorsAlone) {
  const Folder folder;
  write_tensors(folder / "x", some_tensors());
  write_tensors(folder / "y", some_tensors());
  EXPECT_EQ(read_bytes(folder / "x"), read_bytes(folder / "y"));
}

TEST(TensorFile, ReadsFilesOfOthers) {
  const Folder folder;
  const float values[] = {1, 2, 3};
  write_bytes(folder / "x", compose(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                                    R"("a":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}   )",
                                    std::string_view(reinterpret_cast<const char*>(values), 12)));
  const TensorList tensors = read_tensors(folder / "x");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[1].tensor.to_vector<float>(), std::vector<float>{3});
  const TensorList into{{"a", Tensor::zeros({2})}, {"b", Tensor::zeros({1})}};
  EXPECT_NO_THROW(load_tensors(folder / "x", into));
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { load_tensors(folder / "x", into, Checksums::required); }),
               "no checksum"));
}

TEST(TensorFile, RefusesToWriteWhatCannotBeRead) {
  const Folder folder;
  const Tensor x = Tensor::zeros({2, 3});
  const auto refuse = [&](const TensorList& tensors, const Metadata& metadata, const char* part) {
    const std::string message =
        message_of<ValueError>([&] { write_tensors(folder / "x", tensors, metadata); });
    EXPECT_TRUE(contains(message, part)) << message;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  };
  refuse({{"a", x}, {"a", x}}, {}, "two tensors");
  refuse({{"", x}}, {}, "\"\"");
  refuse({{"__metadata__", x}}, {}, "__metadata__");
  refuse({{"a", Tensor()}}, {}, "undefined");
  refuse({{"a", x.alias({3, 2}, {1, 3}, 0)}}, {}, "not contiguous");
  refuse({{"\xFF", x}}, {}, "UTF-8");
  refuse({{"a", x}}, {{"xxh3/a", "1"}}, "xxh3/a");
}

struct Hostile {
  const char* name;
  std::string file;
  const char* message;  // occurs in the error message
};

std::vector<Hostile> hostile_files() {
  const std::string data(32, 'd');
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const auto one = [&](const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
    return compose(R"({"a":)" + entry(dtype, shape, offsets) + "}", data);
  };
  const auto two = [&](const std::string& first, const std::string& second) {
    return compose(
        R"({"a":)" +
            entry("\"F32\"", first.substr(0, first.find(' ')), first.substr(first.find(' ') + 1)) +
            R"(,"b":)" +
            entry("\"F32\"", second.substr(0, second.find(' ')),
                  second.substr(second.find(' ') + 1)) +
            "}",
        data);
  };
  const auto length = [&](uint64_t n) {
    std::string file = one("\"F32\"", "[8]", "[0,32]");
    std::memcpy(file.data(), &n, 8);
    return file;
  };
  const std::string good = one("\"F32\"", "[8]", "[0,32]");
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
  return {
      {"no bytes", "", "too few"},
      {"seven bytes", "1234567", "too few"},
      {"header of no bytes", compose("", ""), "begin with"},
      {"header length of 2^64 - 1", length(~uint64_t{0}), "claims"},
      {"header length of 2^63", length(uint64_t{1} << 63), "claims"},
      {"header longer than the file", length(good.size() - 7), "claims"},
      {"header above the limit", length(100'000'001), "claims"},
      {"header one byte short", length(good.size() - 8 - 32 - 1), "not valid"},
      {"header one byte long", length(good.size() - 8 - 32 + 1), "not valid"},
      {"header of spaces", compose("    ", data), "begin with"},
      {"header is an array", compose("[]", data), "begin with"},
      {"header is a number", compose("1", data), "begin with"},
      {"header is cut off", compose(R"({"a":)", data), "not valid"},
      {"two values", compose("{} {}", data), "not valid"},
      {"not UTF-8", compose("{\"\xFF\":1}", data), "not valid"},
      {"nested too deep", compose(nested, data), "deeper"},
      {"nested a level too deep", one("\"F32\"", "[[8]]", "[0,32]"), "deeper"},
      {"a name twice",
       compose(R"({"a":)" + entry("\"F32\"", "[4]", "[0,16]") + R"(,"a":)" +
                   entry("\"F32\"", "[4]", "[16,32]") + "}",
               data),
       "twice"},
      {"a key twice",
       compose(R"({"a":{"dtype":"F32","dtype":"F32","shape":[8],"data_offsets":[0,32]}})", data),
       "twice"},
      {"tensor is a number", compose(R"({"a":1})", data), "not an object"},
      {"tensor is null", compose(R"({"a":null})", data), "not an object"},
      {"no dtype", compose(R"({"a":{"shape":[8],"data_offsets":[0,32]}})", data), "needs dtype"},
      {"no shape", compose(R"({"a":{"dtype":"F32","data_offsets":[0,32]}})", data), "needs dtype"},
      {"no offsets", compose(R"({"a":{"dtype":"F32","shape":[8]}})", data), "needs dtype"},
      {"one key too many",
       compose(R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32],"x":1}})", data),
       "nothing else"},
      {"unknown dtype", one("\"F31\"", "[8]", "[0,32]"), "F31"},
      {"dtype in small letters", one("\"f32\"", "[8]", "[0,32]"), "f32"},
      {"dtype is a number", one("32", "[8]", "[0,32]"), "dtype"},
      {"shape is a number", one("\"F32\"", "8", "[0,32]"), "shape"},
      {"negative size", one("\"F32\"", "[-8]", "[0,32]"), "sizes"},
      {"two negative sizes", one("\"F32\"", "[-8,-1]", "[0,32]"), "sizes"},
      {"fractional size", one("\"F32\"", "[8.0]", "[0,32]"), "sizes"},
      {"size as text", one("\"F32\"", "[\"8\"]", "[0,32]"), "sizes"},
      {"size of 2^64 + 8", one("\"F32\"", "[18446744073709551624]", "[0,32]"), "sizes"},
      {"sizes overflow", one("\"F32\"", "[4294967296,4294967296]", "[0,32]"), "overflow"},
      {"sizes overflow to the right number", one("\"F32\"", "[4611686018427387912]", "[0,32]"),
       "overflow"},
      {"sizes overflow behind a zero", one("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"),
       "overflow"},
      {"nine axes", one("\"F32\"", "[1,1,1,1,1,1,1,1,8]", "[0,32]"), "9 axes"},
      {"offsets are a number", one("\"F32\"", "[8]", "32"), "data_offsets"},
      {"one offset", one("\"F32\"", "[8]", "[32]"), "data_offsets"},
      {"three offsets", one("\"F32\"", "[8]", "[0,16,32]"), "data_offsets"},
      {"fractional offset", one("\"F32\"", "[8]", "[0,32.0]"), "data_offsets"},
      {"negative offset", one("\"F32\"", "[8]", "[-32,0]"), "no range"},
      {"offsets in reverse", one("\"F32\"", "[8]", "[32,0]"), "no range"},
      {"offset of 2^64", one("\"F32\"", "[8]", "[0,18446744073709551616]"), "data_offsets"},
      {"offsets too near", one("\"F32\"", "[8]", "[0,31]"), "needs 32"},
      {"offsets too far", one("\"F32\"", "[7]", "[0,32]"), "needs 28"},
      {"beyond the end", one("\"F32\"", "[16]", "[0,64]"), "64 bytes"},
      {"beyond the end by far", one("\"U8\"", "[1099511627776]", "[0,1099511627776]"),
       "1099511627776"},
      {"before the end", one("\"F32\"", "[4]", "[0,16]"), "16 bytes"},
      {"a hole at the start", one("\"F32\"", "[4]", "[16,32]"), "belong to no tensor"},
      {"a hole between", two("[2] [0,8]", "[4] [16,32]"), "belong to no tensor"},
      {"an overlap", two("[5] [0,20]", "[4] [16,32]"), "overlaps"},
      {"one inside the other", two("[8] [0,32]", "[2] [8,16]"), "overlaps"},
      {"both the same", two("[8] [0,32]", "[8] [0,32]"), "overlaps"},
      {"an empty one inside", two("[8] [0,32]", "[0] [8,8]"), "overlaps"},
      {"no tensor but data", compose("{}", data), "0 bytes"},
      {"data are cut off", good.substr(0, good.size() - 1), "32 bytes"},
      {"data go on", good + "x", "33"},
      {"metadata is a number", compose(R"({"__metadata__":1})", ""), "__metadata__"},
      {"metadata holds a number", compose(R"({"__metadata__":{"a":1}})", ""), "not a string"},
      {"checksum is cut off", compose(R"({"__metadata__":{"xxh3":"12)", ""), "cut off"},
      {"two checksums",
       compose(R"({"__metadata__":{"xxh3":"0000000000000000"},"xxh3":"0000000000000000"})", ""),
       "two checksums"},
      {"wrong checksum", compose(R"({"__metadata__":{"xxh3":"0000000000000000"}})", ""),
       "checksum"},
  };
}

TEST(TensorFile, RejectsHostileFiles) {
  const Folder folder;
  const std::vector<Hostile> files = hostile_files();
  EXPECT_GE(files.size(), 40u);
  for (const Hostile& hostile : files) {
    SCOPED_TRACE(hostile.name);
    write_bytes(folder / "x", hostile.file);
    const std::string message = message_of<IoError>([&] { read_tensors(folder / "x"); });
    EXPECT_TRUE(contains(message, folder / "x")) << message;
    EXPECT_TRUE(contains(message, hostile.message)) << message;
  }
}

/// Returns a list of empty tensors.
TensorList many_tensors(int64_t count) {
  TensorList all;
  const Tensor nothing = Tensor::empty({0});
  for (int64_t i = 0; i < count; ++i) all.push_back({fmt::format("layers.{}.weight", i), nothing});
  return all;
}

/// Returns the seconds of the processor that f needs.
template <class F>
double processor_seconds(F&& f) {
  const std::clock_t begin = std::clock();
  f();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(TensorFile, ReadsManyTensorsInLinearTime) {
  const Folder folder;
  constexpr int64_t few = 5'000, times = 8;
  write_tensors(folder / "few", many_tensors(few));
  write_tensors(folder / "many", many_tensors(times * few));
  const auto seconds = [&](const char* name) {
    double least = 1e9;
    for (int turn = 0; turn < 3; ++turn) {
      least = std::min(least, processor_seconds([&] { read_tensors(folder / name); }));
    }
    return least;
  };
  EXPECT_EQ(read_tensors(folder / "many").size(), times * few);
  EXPECT_LT(seconds("many"), 3 * times * std::max(seconds("few"), 1e-3));
}

// A header is held once, as text, beside what it says: not as a tree of values that are each many
// times as large. The process may take no more addresses than that.
TEST(TensorFile, ReadsHeadersInLittleMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "skipped: sanitizers need all addresses";
#endif
  std::string header = R"({"__metadata__":{)";
  constexpr int count = 200'000;
  for (int i = 0; i < count; ++i) header += fmt::format("{}\"note{}\":\"\"", i > 0 ? "," : "", i);
  header += "}";
  for (int i = 0; i < count; ++i) {
    header += fmt::format(R"(,"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", i);
  }
  header += "}";
  const auto bytes = static_cast<int64_t>(header.size());
  const pid_t child = fork();
  if (child == 0) {
    std::ifstream status("/proc/self/statm");
    int64_t pages = 0;
    status >> pages;
    const auto most = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + 8 * bytes);
    const rlimit limit{most, most};
    setrlimit(RLIMIT_AS, &limit);
    try {
      const TensorHeader read = parse_tensor_header(header, 8 + bytes, "file");
      _exit(read.entries.size() == count && read.metadata.size() == count ? 0 : 1);
    } catch (...) {
      _exit(2);
    }
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(TensorFile, FindsEveryFlippedBit) {
  const Folder folder;
  const TensorList tensors{{"a", Tensor::from(std::vector<float>{1, 2, 3}, {3})},
                           {"b", Tensor::from(std::vector<uint8_t>{1, 2}, {2})}};
  write_tensors(folder / "x", tensors);
  const std::string good = read_bytes(folder / "x");
  const TensorList into{{"a", Tensor::zeros({3})}, {"b", Tensor::zeros({2}, DType::u8)}};
  const File file(open((folder / "x").c_str(), O_WRONLY));
  for (size_t i = 0; i < good.size() * 8; ++i) {
    const char bad = static_cast<char>(good[i / 8] ^ (1 << (i % 8)));
    ASSERT_EQ(pwrite(file.get(), &bad, 1, static_cast<off_t>(i / 8)), 1);
    EXPECT_THROW(load_tensors(folder / "x", into, Checksums::required), IoError) << "bit " << i;
    ASSERT_EQ(pwrite(file.get(), &good[i / 8], 1, static_cast<off_t>(i / 8)), 1);
  }
  EXPECT_EQ(into[0].tensor.to_vector<float>(), (std::vector<float>{0, 0, 0}));
}

TEST(TensorFile, FindsEveryTruncation) {
  const Folder folder;
  write_tensors(folder / "x", some_tensors());
  for (size_t n = std::filesystem::file_size(folder / "x"); n-- > 0;) {
    std::filesystem::resize_file(folder / "x", n);
    EXPECT_THROW(read_tensors(folder / "x"), IoError) << n;
  }
}

TEST(TensorFile, LoadingIsStrict) {
  const Folder folder;
  write_tensors(folder / "x", {{"a", Tensor::zeros({2, 3})}, {"b", Tensor::zeros({4})}});
  const auto load = [&](const TensorList& into) {
    return message_of<IoError>([&] { load_tensors(folder / "x", into); });
  };
  const Tensor a = Tensor::from(std::vector<float>(6, 7), {2, 3});
  EXPECT_TRUE(contains(load({{"a", a}}), "\"b\""));
  EXPECT_TRUE(contains(load({{"a", a}, {"c", a}}), "no tensor \"c\""));
  EXPECT_TRUE(contains(load({{"a", a}, {"b", Tensor::zeros({2, 2})}}),
                       "\"b\" is f32[4] in " + (folder / "x") + ", expected f32[2, 2]"));
  EXPECT_TRUE(contains(load({{"a", a}, {"b", Tensor::zeros({4}, DType::f64)}}), "f64[4]"));
  EXPECT_TRUE(
      contains(load({{"a", a}, {"b", Tensor::zeros({4})}, {"b", Tensor::zeros({4})}}), "b"));
  EXPECT_EQ(a.to_vector<float>(), std::vector<float>(6, 7));  // nothing was written
  EXPECT_TRUE(contains(message_of<IoError>([&] { load_tensors(folder / "none", {}); }), "No such"));
  EXPECT_TRUE(contains(message_of<IoError>([&] { load_tensors(folder.path(), {}); }), "a folder"));
}

TEST(Checkpoint, RoundTrip) {
  const Folder run;
  EXPECT_EQ(newest_checkpoint(run.path()), "");
  EXPECT_TRUE(saved_steps(run / "not there").empty());
  const TensorList model = some_tensors(), optimizer = some_tensors(3);
  const std::string path =
      write_state(run.path(), 120, model, optimizer, {{"epoch", 2}, {"best", 0.1}, {"seed", "x"}});
  EXPECT_EQ(path, run / "checkpoints/step-120");
  EXPECT_EQ(newest_checkpoint(run.path()), path);
  EXPECT_NO_THROW(verify_checkpoint(path));

  const TensorList a = some_tensors(8), b = some_tensors(9);
  const Json values = read_state(path, a, b);
  expect_same(a, model);
  expect_same(b, optimizer);
  EXPECT_EQ(values["step"].integer(), 120);
  EXPECT_EQ(values["epoch"].integer(), 2);
  EXPECT_EQ(values["best"].number(), 0.1);
  EXPECT_EQ(read_values(path), values);
  const TensorList c = some_tensors(7);
  read_parameters(path, c);
  expect_same(c, model);
}

TEST(Checkpoint, KeepsTheNewest) {
  const Folder run;
  for (const int64_t step : {5, 100, 20, 7}) {
    write_state(run.path(), step, some_tensors(), {}, {}, 2);
  }
  // Step 7 was written last and is kept in addition to the newest two.
  EXPECT_EQ(saved_steps(run.path()), (std::vector<int64_t>{7, 20, 100}));
  write_state(run.path(), 101, some_tensors(), {}, {}, 1);
  EXPECT_EQ(saved_steps(run.path()), std::vector<int64_t>{101});
  for (const int64_t step : {102, 103, 104}) write_state(run.path(), step, some_tensors(), {});
  prune_checkpoints(run.path(), 0);
  EXPECT_EQ(saved_steps(run.path()).size(), 4u);
  prune_checkpoints(run.path(), 2, {102});
  EXPECT_EQ(saved_steps(run.path()), (std::vector<int64_t>{102, 103, 104}));
  write_state(run.path(), 101, some_tensors(), {});
  prune_checkpoints(run.path(), 1, {101});
  EXPECT_EQ(saved_steps(run.path()), (std::vector<int64_t>{101, 104}));
  prune_checkpoints(run.path(), 1);
  write_state(run.path(), 101, some_tensors(), {});
  std::filesystem::remove_all(run / "checkpoints/step-104");
  for (const char* name : {"step-", "step-x", "step-7x", "step-007", "step--1", "other"}) {
    std::filesystem::create_directory(run / "checkpoints/" + name);
  }
  EXPECT_EQ(saved_steps(run.path()), std::vector<int64_t>{101});
  EXPECT_EQ(newest_checkpoint(run.path()), run / "checkpoints/step-101");
}

TEST(Checkpoint, ReplacesOneOfTheSameStep) {
  const Folder run;
  write_state(run.path(), 3, some_tensors(1), {});
  write_state(run.path(), 3, some_tensors(2), {});
  const TensorList read = some_tensors();
  read_parameters(newest_checkpoint(run.path()), read);
  expect_same(read, some_tensors(2));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(run / "checkpoints")) {
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST(Checkpoint, HoldsFiniteNumbersAlone) {
  const Folder run;
  write_state(run.path(), 3, some_tensors(1), some_tensors(2));
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    TensorList tensors = some_tensors(3);
    tensors.push_back({"last", Tensor::from(std::vector<float>{0, 1, bad}, {3})});
    EXPECT_EQ(first_nonfinite(tensors), "last");
    for (const bool of_optimizer : {false, true}) {
      const std::string message = message_of<NonfiniteState>([&] {
        write_state(run.path(), 3, of_optimizer ? some_tensors() : tensors,
                    of_optimizer ? tensors : some_tensors());
      });
      EXPECT_TRUE(contains(message, "\"last\" holds NaN or infinity after step 3")) << message;
    }
  }
  // The earlier checkpoint is unchanged.
  const TensorList read = some_tensors();
  read_parameters(newest_checkpoint(run.path()), read);
  expect_same(read, some_tensors(1));
  EXPECT_EQ(first_nonfinite({{"ids", Tensor::from(std::vector<int32_t>{-1}, {1})},
                             {"none", Tensor::zeros({0})}}),
            "");
}

TEST(Checkpoint, RefusesItsOwnNames) {
  const Folder run;
  for (const char* name : {"step", "files", "xxh3"}) {
    EXPECT_THROW(write_state(run.path(), 1, {}, {}, {{name, 1}}), ValueError);
  }
  EXPECT_THROW(write_state(run.path(), -1, {}, {}), ValueError);
  EXPECT_TRUE(saved_steps(run.path()).empty());
}

class DamagedCheckpoint : public testing::Test {
 protected:
  DamagedCheckpoint() {
    write_state(run_.path(), 1, model_, optimizer_);
    write_state(run_.path(), 2, model_, optimizer_, {{"note", "text"}});
  }
  std::string part(const char* name) const { return run_ / "checkpoints/step-2/" + name; }
  /// Returns the error of reading the newest checkpoint.
  std::string problem() const {
    const std::string path = newest_checkpoint(run_.path());
    EXPECT_EQ(path, run_ / "checkpoints/step-2");  // never skipped
    const TensorList a = some_tensors(8), b = some_tensors(9);
    const std::string message = message_of<IoError>([&] { read_state(path, a, b); });
    expect_same(a, some_tensors(8));  // nothing was written
    expect_same(b, some_tensors(9));
    return message;
  }

  Folder run_;
  TensorList model_ = some_tensors(1), optimizer_ = some_tensors(2);
};

TEST_F(DamagedCheckpoint, NamesTheMissingFile) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string bytes = read_bytes(part(name));
    std::filesystem::remove(part(name));
    const std::string message = problem();
    EXPECT_TRUE(contains(message, part(name)) && contains(message, "No such file")) << message;
    EXPECT_THROW(verify_checkpoint(newest_checkpoint(run_.path())), IoError);
    write_bytes(part(name), bytes);
  }
  EXPECT_NO_THROW(verify_checkpoint(newest_checkpoint(run_.path())));
}

TEST_F(DamagedCheckpoint, FindsFlippedBitsAnywhere) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string bytes = read_bytes(part(name));
    for (size_t i = 0; i < bytes.size(); i += 13) {
      std::string bad = bytes;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      write_bytes(part(name), bad);
      const std::string message = problem();
      EXPECT_TRUE(contains(message, part(name))) << message;
    }
    write_bytes(part(name), bytes);
  }
}

TEST_F(DamagedCheckpoint, FindsTruncation) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string bytes = read_bytes(part(name));
    for (const size_t n : {size_t{0}, size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
      write_bytes(part(name), bytes.substr(0, n));
      const std::string message = problem();
      EXPECT_TRUE(contains(message, part(name)) && contains(message, "damaged")) << message;
    }
    write_bytes(part(name), bytes);
  }
}

TEST_F(DamagedCheckpoint, FindsAFileOfAnotherCheckpoint) {
  write_bytes(part("model.safetensors"), read_bytes(part("optimizer.safetensors")));
  EXPECT_TRUE(contains(problem(), "not the file"));
}

TEST_F(DamagedCheckpoint, FindsAFolderOfAnotherStep) {
  const std::string moved = run_ / "checkpoints/step-99", kept = run_ / "checkpoints/best";
  std::filesystem::rename(run_ / "checkpoints/step-2", moved);
  const std::string message = message_of<IoError>([&] { verify_checkpoint(moved); });
  EXPECT_TRUE(contains(message, "step 2 and lies in step-99")) << message;
  std::filesystem::rename(moved, kept);  // a custom name
  EXPECT_NO_THROW(verify_checkpoint(kept));
}

TEST_F(DamagedCheckpoint, FindsAFileInPlaceOfTheFolder) {
  std::filesystem::remove_all(run_ / "checkpoints/step-2");
  write_bytes(run_ / "checkpoints/step-2", "x");
  EXPECT_TRUE(contains(problem(), "ENOTDIR"));
}

TEST(Checkpoint, UnwritableFolder) {
  const Folder run;
  write_bytes(run / "file", "x");
  const std::string message =
      message_of<IoError>([&] { write_state(run / "file", 1, some_tensors(), {}); });
  EXPECT_TRUE(contains(message, run / "file")) << message;
  EXPECT_EQ(read_bytes(run / "file"), "x");
  EXPECT_THROW(write_state("/proc/longspan", 1, some_tensors(), {}), IoError);
  EXPECT_THROW(write_tensors("/proc/longspan", {}), IoError);
}

/// Runs f in a child process and returns its exit status, or -1 after a signal.
int in_child(const std::function<int()>& f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Checkpoint, FullDiskLeavesThePreviousOne) {
  const Folder run;
  write_state(run.path(), 1, some_tensors(1), some_tensors(2));
  const Tensor large = Tensor::zeros({100'000});
  // A limit on the size of files emulates a full disk: writes fail in the middle.
  for (const rlim_t limit : {rlim_t{0}, rlim_t{7}, rlim_t{300}, rlim_t{100'000}}) {
    EXPECT_EQ(in_child([&] {
                const rlimit r{limit, limit};
                setrlimit(RLIMIT_FSIZE, &r);
                try {
                  write_state(run.path(), 2, some_tensors(3), {{"large", large}});
                } catch (const IoError& error) {
                  return contains(error.what(), "cannot write") && contains(error.what(), "free")
                             ? 42
                             : 1;
                }
                return 0;
              }),
              42);
    EXPECT_EQ(saved_steps(run.path()), std::vector<int64_t>{1});
    int entries = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(run / "checkpoints")) {
      ++entries;
    }
    EXPECT_EQ(entries, 1);
    EXPECT_NO_THROW(verify_checkpoint(newest_checkpoint(run.path())));
  }
}

TEST(Checkpoint, SweepsTheDeadAndSparesTheLiving) {
  const Folder run;
  write_state(run.path(), 1, some_tensors(), {});
  const std::string folder = run / "checkpoints";
  const std::string dead = folder + "/.tmp-longspan-7-1af-0",
                    file = folder + "/.tmp-longspan-7-2-1";
  const std::string other = folder + "/.tmp-rsync-partial";
  for (const std::string& path : {dead, other}) {
    std::filesystem::create_directory(path);
    write_bytes(path + "/model.safetensors", "half");
  }
  write_bytes(file, "half");
  write_bytes(folder + "/.hidden", "not ours");
  {
    const Temporary living(Temporary::folder, folder, "test");
    const Temporary living_file(Temporary::file, folder, "test");
    for (const Temporary* t : {&living, &living_file}) {
      EXPECT_TRUE(is_temporary_name(t->path().substr(folder.size() + 1))) << t->path();
    }
    write_state(run.path(), 2, some_tensors(), {});
    EXPECT_TRUE(std::filesystem::exists(living.path()));
    EXPECT_TRUE(std::filesystem::exists(living_file.path()));
    EXPECT_FALSE(std::filesystem::exists(dead));
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_EQ(read_bytes(other + "/model.safetensors"), "half");
    EXPECT_TRUE(std::filesystem::exists(folder + "/.hidden"));
    EXPECT_NE(living.path().find("/."), std::string::npos);
  }
  EXPECT_EQ(sweep(folder), 0);
  EXPECT_EQ(sweep(folder + "/nowhere"), 0);
  EXPECT_TRUE(is_temporary_name(".tmp-longspan-7-1af-0-old"));
  for (const char* name : {".tmp-longspan-7-1af-0-older", ".tmp-longspan-7-1af-0 (copy)",
                           ".tmp-longspan-7-1af-", ".tmp-longspan-7", ".tmp-longspan-"}) {
    EXPECT_FALSE(is_temporary_name(name)) << name;
  }
}

TEST(Checkpoint, SurvivesKill) {
  const Folder run;
  const auto write = [&](int64_t step) {
    const auto value = static_cast<float>(step);
    const Tensor x = Tensor::from(std::vector<float>(50'000, value), {50'000});
    write_state(run.path(), step % 7, {{"x", x}}, {{"y", x}}, {{"value", value}}, 2);
  };
  const auto start = std::chrono::steady_clock::now();
  write(0);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  int unfinished = 0;
  for (int i = 0; i < 30; ++i) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      [[maybe_unused]] const ssize_t n = ::write(ready[1], "x", 1);
      for (int64_t step = 0;; ++step) write(step);
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    // Kills the writer at a random time after its first write.
    usleep(static_cast<useconds_t>(seconds * 3e6 * to_uniform(philox_word(1, i))));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (const int64_t step : saved_steps(run.path())) {
      EXPECT_NO_THROW(verify_checkpoint(checkpoint_path(run.path(), step)));
      const Tensor x = Tensor::zeros({50'000}), y = Tensor::zeros({50'000});
      const Json values = read_state(checkpoint_path(run.path(), step), {{"x", x}}, {{"y", y}});
      EXPECT_EQ(x.to_vector<float>(),
                std::vector<float>(50'000, static_cast<float>(values["value"].number())));
      EXPECT_EQ(x.to_vector<float>(), y.to_vector<float>());
    }
    unfinished += sweep(run / "checkpoints");
  }
  EXPECT_GT(unfinished, 0);  // otherwise no kill has interrupted a write
  EXPECT_FALSE(saved_steps(run.path()).empty());
}

TEST(Files, ReplaceAll) {
  const Folder folder;
  replace_file(folder / "x", "one", "test");
  replace_file(folder / "x", "two", "test");
  EXPECT_EQ(read_file(folder / "x", "test"), "two");
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { read_file(folder / "x", "test", 2); }), "3 bytes"));
  EXPECT_THROW(replace_file(folder / "no/such", "x", "test"), IoError);
  EXPECT_EQ(sweep(folder.path()), 0);
}

TEST(Files, OneWriterAtATime) {
  const Folder folder;
  {
    const FolderLock lock(folder / "run", "test");
    const std::string message = message_of<IoError>([&] { FolderLock(folder / "run", "test"); });
    EXPECT_TRUE(contains(message, "another process")) << message;
  }
  EXPECT_NO_THROW(FolderLock(folder / "run", "test"));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "run"));
}

TEST(Files, FoldersWithinFolders) {
  const Folder folder;
  for (const char* path : {"a/b c/d", "e/", "e/f//g", "a"}) {
    make_folders(folder / path, "test");
    EXPECT_TRUE(std::filesystem::is_directory(folder / path)) << path;
  }
  write_bytes(folder / "file", "x");
  for (const char* path : {"file", "file/below"}) {
    EXPECT_TRUE(contains(message_of<IoError>([&] { make_folders(folder / path, "test"); }), path));
  }
  EXPECT_THROW(make_folders("", "test"), IoError);
}

TEST(Files, ATemporaryThatCannotBeMadeLeavesNothing) {
  const Folder folder;
  EXPECT_THROW(Temporary(Temporary::file, folder / "none", "test"), IoError);
  const pid_t child = fork();
  if (child == 0) {  // no descriptor is left for the lock
    const rlimit limit{3, 3};
    setrlimit(RLIMIT_NOFILE, &limit);
    try {
      const Temporary temporary(Temporary::folder, folder.path(), "test");
    } catch (const IoError& error) {
      _exit(contains(error.what(), "EMFILE") ? 42 : 1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace longspan
