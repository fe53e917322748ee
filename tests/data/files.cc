#include "data/io/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <vector>

#include "core/error.h"
#include "data/io/bytes.h"
#include "tests/data/disk.h"
#include "tests/harness/scratch.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan {
namespace {

using test::contains;
using test::DiskRecord;
using test::Folder;
using test::Interruptions;
using test::message_of;
using test::read_bytes;
using test::write_bytes;

TensorList tensors(float value) {
  return {{"x", Tensor::from(std::vector<float>(300, value), {300})}};
}

void save(const std::string& run, int64_t step, float value, int keep) {
  write_state(run, step, tensors(value), tensors(value + 1), {{"value", value}}, keep);
}

/// Checks what a run that is saved several times leaves on the disk if power is lost, and from when
/// on a save must survive.
class PowerLoss : public testing::Test {
 protected:
  /// Holds a completed save that must survive.
  struct Done {
    int64_t step = -1;
    float value = 0;
    std::string config = {};
    size_t events = 0;
  };

  void done(const DiskRecord& record, Done what) {
    what.events = record.size();
    done_.push_back(what);
    since_.push_back(what.events);
  }

  /// Expects the last completed save, or the one in progress when power was lost.
  void check(size_t events, const DiskRecord::Tree& tree) const {
    SCOPED_TRACE(fmt::format("power lost after {} events", events));
    const Folder place;
    test::make_tree(place.path(), tree);
    const std::string run = place / "a/run";
    size_t last = 0;  // index of the last completed save
    while (last + 1 < done_.size() && done_[last + 1].events <= events) ++last;
    const auto as_done = [&](auto&& holds) {
      return holds(done_[last]) || (last + 1 < done_.size() && holds(done_[last + 1]));
    };
    const std::string config = read_bytes(run + "/config.toml");
    EXPECT_TRUE(as_done([&](const Done& d) { return config == d.config; })) << config;
    for (const int64_t step : saved_steps(run)) {
      EXPECT_NO_THROW(verify_checkpoint(checkpoint_path(run, step)));
    }
    const std::string newest = newest_checkpoint(run);
    if (newest.empty()) {
      EXPECT_TRUE(as_done([&](const Done& d) { return d.step < 0; })) << "no checkpoint is left";
      return;
    }
    const TensorList a = tensors(-1), b = tensors(-1);
    Json values;
    ASSERT_NO_THROW(values = read_state(newest, a, b));
    const auto value = static_cast<float>(values["value"].number());
    EXPECT_TRUE(as_done([&](const Done& d) {
      return d.step == values["step"].integer() && d.value == value;
    })) << newest
        << ", value " << value;
    EXPECT_EQ(a[0].tensor.to_vector<float>(), std::vector<float>(300, value));
    EXPECT_EQ(b[0].tensor.to_vector<float>(), std::vector<float>(300, value + 1));
  }

  std::vector<Done> done_;
  std::vector<size_t> since_;
};

TEST_F(PowerLoss, LeavesAWholeCheckpointWheneverItComes) {
  const Folder folder;
  const std::string run = folder / "a/run";
  const DiskRecord record(folder.path());
  done(record, {});
  make_folders(run, "test");
  replace_file(run + "/config.toml", "first", "test");
  done(record, {-1, 0, "first"});
  save(run, 1, 10, 1);
  done(record, {1, 10, "first"});
  save(run, 2, 20, 1);
  done(record, {2, 20, "first"});
  replace_file(run + "/config.toml", "second", "test");
  done(record, {2, 20, "second"});
  save(run, 2, 21, 1);  // replaces the existing checkpoint
  done(record, {2, 21, "second"});
  save(run, 3, 30, 2);
  done(record, {3, 30, "second"});
  EXPECT_GT(record.size(), 80u);
  int states = 0;
  record.replay(since_, [&](size_t events, const DiskRecord::Tree& tree) {
    ++states;
    if (!HasFailure()) check(events, tree);
  });
  EXPECT_GT(states, 100);
}

TEST(Files, ThatEndTooEarlyAreAnError) {
  const Folder folder;
  write_bytes(folder / "x", "12345");
  const File file = open_file(folder / "x", O_RDONLY);
  std::string read(5, ' ');
  read_exactly(file, "x", "test", 0, read.data(), 5);
  EXPECT_EQ(read, "12345");
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { read_exactly(file, "x", "test", 2, read.data(), 5); }),
               "x ends at byte 5, 2 before what it promises"));
}

TEST(Files, GoOnWhereSignalsInterruptThem) {
  const Folder folder;
  const std::string run = folder / "run";
  const TensorList a = tensors(0), b = tensors(0);
  const Interruptions interruptions;
  {
    const FolderLock lock(run, "test");
    Log log(run, {.status = nullptr});
    log.row(1, {{"loss", 0.5}});
    save(run, 1, 10, 1);
    save(run, 2, 20, 1);
  }
  EXPECT_EQ(read_state(newest_checkpoint(run), a, b)["step"].integer(), 2);
  EXPECT_EQ(a[0].tensor.to_vector<float>(), std::vector<float>(300, 20));
  EXPECT_EQ(read_rows(run + "/metrics.jsonl").size(), 1u);
  EXPECT_EQ(open_bytes(run + "/metrics.jsonl", "test").text(), "{\"step\":1,\"loss\":0.5}\n");
  for (const auto call :
       {Interruptions::open, Interruptions::pread, Interruptions::write, Interruptions::fsync}) {
    EXPECT_GT(interruptions.count(call), 4) << call;
  }
}

int64_t sum(const FileBytes& file) {
  int64_t total = 0;
  for (const uint8_t byte : file.bytes) total += byte;
  return total;
}

TEST(Files, CutShortWhileTheyAreMappedEndTheProcessWithAWord) {
  const Folder folder;
  const std::string path = folder / "corpus", other = folder / "other";
  write_bytes(path, std::string(100'000, 'x'));
  write_bytes(other, std::string(5000, 'y'));
  const auto cut = [&] {
    { const FileBytes gone = open_bytes(other, "test"); }
    const FileBytes first = open_bytes(other, "test"), file = open_bytes(path, "test");
    const int64_t before = sum(file);
    std::filesystem::resize_file(path, 5000);
    _exit(before == 100'000 * 'x' && sum(first) == 5000 * 'y' && sum(file) > 0 ? 0 : 2);
  };
  EXPECT_EXIT(cut(), testing::ExitedWithCode(1),
              "test: .*/corpus had 100000 bytes when it was opened, and cannot be read on");
  // SIGBUS handling outside our mappings is unchanged.
  const auto get = [&](bool handled) {
    if (handled) signal(SIGBUS, [](int) { _exit(42); });
    const FileBytes file = open_bytes(other, "test");
    raise(SIGBUS);
  };
  EXPECT_EXIT(get(true), testing::ExitedWithCode(42), "");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_DEATH(get(false), "BUS on unknown address");  // the sanitizer's own handler
#else
  EXPECT_EXIT(get(false), testing::KilledBySignal(SIGBUS), "");
#endif
}

TEST(Files, BeyondTheLimitAreAnError) {
  const Folder folder;
  const auto write_more = [&](bool handled) {
    if (handled) {
      signal(SIGXFSZ, [](int) { _exit(42); });
      ignore_file_size_signal();
    }
    const rlimit limit{5, 5};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      replace_file(folder / "x", "more than that", "test");
    } catch (const IoError& error) {
      const std::string message = error.what();
      _exit(contains(message, "cannot write") && contains(message, "EFBIG") ? 1 : 2);
    }
    _exit(0);
  };
  EXPECT_EXIT(write_more(false), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(write_more(true), testing::ExitedWithCode(42), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

TEST(Files, KindOfAPath) {
  const Folder folder;
  write_bytes(folder / "file", "x");
  std::filesystem::create_symlink("file", folder / "link");
  std::filesystem::create_symlink("none", folder / "dangling");
  std::filesystem::create_symlink("circle", folder / "circle");
  EXPECT_EQ(kind_of_path(folder / "file", "test"), PathKind::file);
  EXPECT_EQ(kind_of_path(folder / "link", "test"), PathKind::file);
  EXPECT_EQ(kind_of_path(folder.path(), "test"), PathKind::folder);
  EXPECT_EQ(kind_of_path("/dev/null", "test"), PathKind::other);
  EXPECT_EQ(kind_of_path(folder / "none", "test"), PathKind::nothing);
  EXPECT_EQ(kind_of_path(folder / "dangling", "test"), PathKind::nothing);
  EXPECT_EQ(kind_of_path(folder / "file/below", "test"), PathKind::nothing);
  for (const std::string& path : {folder / "circle", folder / "circle/below"}) {
    const std::string message = message_of<IoError>([&] { kind_of_path(path, "test"); });
    EXPECT_TRUE(contains(message, path) && contains(message, "they lead in a circle")) << message;
  }
}

}  // namespace
}  // namespace longspan
