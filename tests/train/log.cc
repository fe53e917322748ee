#include "train/log.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::read_bytes;
using test::write_bytes;

struct BatchOptions {
  int64_t batch = 4;
  void visit(auto& v) { v("batch", batch); }
};

TEST(Log, WritesConfigAndRows) {
  const Folder folder;
  {
    Log log(folder / "run", BatchOptions{}, {.status = nullptr});
    log.row(1, {{"loss", 0.5}, {"peak", Members{{"total", 3}}}});
    log.row(2, {{"loss", std::nan("")}});
    log.show({}, true);
    log.say("nothing");
  }
  EXPECT_EQ(read_bytes(folder / "run/config.toml"), "batch = 4\n");
  EXPECT_EQ(read_bytes(folder / "run/metrics.jsonl"),
            "{\"step\":1,\"loss\":0.5,\"peak\":{\"total\":3}}\n{\"step\":2,\"loss\":null}\n");
  EXPECT_EQ(read_rows(folder / "run/metrics.jsonl").size(), 2u);
}

TEST(Log, ResumesAfterItsStep) {
  const Folder run;
  const std::string path = run / "metrics.jsonl";
  write_bytes(path,
              "{\"step\":1}\nnot json\n{\"step\":5,\"loss\":0.1}\n{\"step\":6}\n3\n{\"step\":7}\n"
              "{\"step\":5,\"valid\":2}\n{\"step\":8,\"lo");
  {
    Log log(run.path(), {.resume_step = 5, .status = nullptr});
    log.row(6, {{"again", true}});
  }
  EXPECT_EQ(read_bytes(path),
            "{\"step\":1}\n{\"step\":5,\"loss\":0.1}\n{\"step\":5,\"valid\":2}\n"
            "{\"step\":6,\"again\":true}\n");
  { Log log(run.path(), {.status = nullptr}); }
  EXPECT_EQ(read_bytes(path), "");
}

TEST(Log, RowsAreWholeOrAnError) {
  const Folder run;
  const pid_t child = fork();
  if (child == 0) {
    Log log(run.path(), {.status = nullptr});
    log.row(1, {{"loss", 1}});
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{25, 25};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      log.row(2, {{"loss", 2}});
    } catch (const IoError& error) {
      _exit(contains(error.what(), "metrics.jsonl") ? 42 : 1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_EQ(read_rows(run / "metrics.jsonl").size(), 1u);
}

TEST(Log, AppendsRowsWholeOrNotAtAll) {
  const Folder folder;
  const std::string path = folder / "rows.jsonl";
  EXPECT_EQ(append_row(path, {{"a", 1}}), "{\"a\":1}");
  append_row(path, {{"a", 2}});
  EXPECT_EQ(read_bytes(path), "{\"a\":1}\n{\"a\":2}\n");
  write_bytes(path, "{\"a\":1}\n{\"a\":");  // truncated by a crash
  append_row(path, {{"a", 3}});
  EXPECT_EQ(read_bytes(path), "{\"a\":1}\n{\"a\":\n{\"a\":3}\n");
  EXPECT_EQ(read_rows(path).size(), 2u);
  EXPECT_THROW(append_row(folder / "none/rows.jsonl", {}), IoError);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{26, 26};  // only some bytes of the next row fit
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      append_row(path, {{"a", 4}});
    } catch (const IoError& error) {
      _exit(contains(error.what(), "rows.jsonl") ? 42 : 1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_EQ(read_bytes(path), "{\"a\":1}\n{\"a\":\n{\"a\":3}\n");
}

TEST(Log, PlainLinesWhereThereIsNoTerminal) {
  const Folder folder;
  std::FILE* file = std::fopen((folder / "status").c_str(), "w");
  {
    Log log(folder / "run", {.status = file, .plain_seconds = 1e9});
    log.show({.step = 1, .steps = 9, .loss = 1});
    log.show({.step = 2, .steps = 9, .loss = 1});  // too early to be shown
    log.say("saved");
    const LossUnit unit;
    log.show({.step = 9, .steps = 9, .loss = 2 * std::numbers::ln2, .unit = &unit}, true);
  }
  std::fclose(file);
  EXPECT_EQ(read_bytes(folder / "status"),
            "step 1/9  loss 1.0000\nsaved\nstep 9/9  loss 1.3863  bpb 2.000\n");
}

TEST(Log, RedrawsOnATerminal) {
  const Folder folder;
  const File master(posix_openpt(O_RDWR | O_NOCTTY));
  if (!master) GTEST_SKIP() << "skipped: no pseudo-terminals here (is devpts mounted?)";
  ASSERT_EQ(grantpt(master.get()), 0);
  ASSERT_EQ(unlockpt(master.get()), 0);
  std::FILE* terminal = std::fopen(ptsname(master.get()), "w");
  ASSERT_NE(terminal, nullptr);
  winsize size{};
  size.ws_col = 12;
  ioctl(fileno(terminal), TIOCSWINSZ, &size);
  {
    Log log(folder / "run", {.status = terminal});
    log.show({.step = 1, .steps = 9});
    log.say("note \x1b[2J");  // what files hold is shown, not obeyed
    log.say("more");
    log.show({.step = 2, .steps = 9});  // at once, since nothing is shown
    log.end_line();
    log.say("last");
  }
  std::fclose(terminal);
  std::string drawn;  // a terminal delivers its output in chunks
  char buffer[1000];
  for (ssize_t n; (n = read(master.get(), buffer, sizeof buffer)) > 0;) {
    drawn.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_EQ(drawn,
            "\rstep 1/9  l\x1b[K\r\x1b[Knote \\x1b[2J\r\nmore\r\n"
            "\rstep 2/9  l\x1b[K\r\nlast\r\n");
}

TEST(Log, FiguresSayWhatTheyArePer) {
  const auto line = [](const LossUnit& unit) {
    return to_string(Progress{.step = 3, .loss = 4 * std::numbers::ln2, .unit = &unit});
  };
  EXPECT_EQ(line({}), "step 3  loss 2.7726  bpb 4.000");
  EXPECT_EQ(line({"byte", 2.5}), "step 3  loss/token 2.7726  bpb 1.600");
  EXPECT_EQ(line({"hidden token", 1}), "step 3  loss 2.7726  bits/hidden token 4.000");
  EXPECT_EQ(line({"byte", std::nan("")}), "step 3  loss/token 2.7726");  // nothing was measured
}

TEST(Log, Formats) {
  const LossUnit bytes;
  EXPECT_EQ(to_string(Progress{.step = 120,
                               .steps = 3000,
                               .loss = 1.23456,
                               .unit = &bytes,
                               .gradient_norm = 0.42,
                               .learning_rate = 9.1e-4,
                               .tokens_per_second = 12'345,
                               .seconds_left = 151,
                               .peak_bytes = 312 << 20}),
            "step 120/3000  loss 1.2346  bpb 1.781  norm 0.42  lr 9.1e-04  12.3k tok/s  eta 2:31  "
            "peak 312 MiB");
  EXPECT_EQ(to_string(Progress{.step = 7,
                               .loss = 2,
                               .auxiliary = {{"span_penalty", 0.00123}, {"commitment", 17}},
                               .gradient_norm = 1}),
            "step 7  loss 2.0000  span_penalty 1.2e-03  commitment 1.7e+01  norm 1.00");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(to_string(Progress{.step = 3, .loss = nan, .unit = &bytes}), "step 3");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(1023 * 1024), "1.0 MiB");
  EXPECT_EQ(format_bytes(int64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(format_seconds(6.7), "0:07");
  EXPECT_EQ(format_seconds(3751), "1:02:31");
  EXPECT_DOUBLE_EQ(bits(std::log(256)), 8);
}

TEST(Log, Summary) {
  const Folder run;
  Usage usage;
  usage[Category::parameter] = 10;
  usage[Category::saved] = 5;
  const std::string line =
      write_summary(run.path(), {{"model", "x"}, {"peak_bytes", to_members(usage)}});
  EXPECT_EQ(line,
            R"({"model":"x","peak_bytes":{"total":15,"parameter":10,"gradient":0,"optimizer":0,)"
            R"("saved":5,"workspace":0,"memory":0,"data":0,"cache":0,"graph":0,"other":0}})");
  EXPECT_EQ(read_bytes(run / "summary.json"), line + "\n");
  EXPECT_EQ(to_usage(parse_json(line)["peak_bytes"]).bytes, usage.bytes);
  EXPECT_EQ(to_usage(parse_json(R"({"total":3,"data":3})"))[Category::data], 3);
  EXPECT_THROW(to_usage(parse_json(line)), ValueError);
  EXPECT_THROW(to_usage(parse_json(R"({"total":4,"data":3})")), ValueError);
  write_bytes(run / "file", "");
  EXPECT_THROW(write_summary(run / "file", {}), IoError);
  EXPECT_THROW(Log(run / "file"), IoError);
}

TEST(Meter, CountsTokensAndSteps) {
  Meter meter;
  EXPECT_EQ(meter.tokens_per_second(), 0);
  EXPECT_EQ(meter.seconds_for(100), 0);
  usleep(1000);
  meter.add(64);
  meter.add(64);
  EXPECT_EQ(meter.tokens(), 128);
  EXPECT_GE(meter.seconds(), 0.001);
  EXPECT_GT(meter.tokens_per_second(), 0);
  EXPECT_GE(meter.seconds_for(4), 0.002);
}

TEST(StopSignal, FirstIsAFlag) {
  for (const int number : {SIGINT, SIGTERM}) {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    raise(number);
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(stop.number(), number);
  }
}

TEST(StopSignal, SecondEndsTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    const StopSignal stop;
    raise(SIGTERM);
    raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

}  // namespace
}  // namespace longspan
