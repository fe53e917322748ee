// What several processes do where something is wrong: one message, and no process is left.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "core/generator.h"
#include "tests/app/small_runs.h"
#include "tests/ranks/mpirun.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan::test {
namespace {

namespace fs = std::filesystem;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Returns the processes whose command line names a folder, but for mpirun.
std::vector<pid_t> processes_of(const std::string& folder) {
  std::vector<pid_t> all;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; }))
      continue;
    std::string words;  // nothing if the process has just ended
    if (std::FILE* const file = std::fopen((entry.path() / "cmdline").c_str(), "rb")) {
      char buffer[4096];
      words.assign(buffer, std::fread(buffer, 1, sizeof buffer, file));
      std::fclose(file);
    }
    if (words.find(folder) == std::string::npos || words.starts_with("mpirun")) continue;
    all.push_back(static_cast<pid_t>(std::stoi(name)));
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// Whether no such process is left after so many seconds.
bool gone(const std::string& folder, double seconds) {
  const double end = now() + seconds;
  while (!processes_of(folder).empty()) {
    if (now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

Settings long_run(const SmallData& data) {
  Settings settings = small_run(data, "transformer");
  settings.push_back(typed("steps", "100000"));
  settings.push_back(typed("save_every", "20"));
  settings.push_back(typed("eval_every", "50"));
  settings.push_back(typed("log_every", "1000"));
  settings.push_back(typed("ranks.timeout", "5"));
  // The learning rate must not depend on the number of steps, which the run that goes on has others
  // of.
  settings.push_back(typed("schedule.name", "constant"));
  settings.push_back(typed("schedule.warmup", "0"));
  return settings;
}

/// Waits until a run has a checkpoint.
void wait_for_checkpoint(const std::string& out) {
  const double begin = now();
  while (newest_checkpoint(out).empty() && now() < begin + 60) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST(Ranks, ErrorsThatAllShareAreSaidOnce) {
  const SmallData data;
  const Folder folder;
  const Outcome o = run(on_ranks(2, train_words(
                                        [&] {
                                          Settings s = small_run(data, "transformer");
                                          s.push_back(typed("length", "100000000"));
                                          return s;
                                        }(),
                                        folder / "run")));
  EXPECT_NE(o.code, 0);
  EXPECT_EQ(count(o.err, "length"), 1) << o.err;
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Ranks, DivergenceIsSaidOnce) {
  const SmallData data;
  const Folder folder;
  Settings settings = small_run(data, "transformer");
  settings.push_back(typed("steps", "200"));
  settings.push_back(typed("optimizer.lr", "1e30"));
  settings.push_back(typed("optimizer.clip", "0"));
  const Outcome o = run(on_ranks(2, train_words(settings, folder / "run")));
  EXPECT_NE(o.code, 0);
  EXPECT_EQ(count(o.err, "rank 0 on"), 1) << o.err;
  EXPECT_EQ(count(o.err, "rank 1 on"), 0) << o.err;
  EXPECT_TRUE(gone(folder / "run", 5));
}

TEST(Ranks, ThatAreNotAlikeAreRefused) {
  const SmallData data;
  const Folder folder;
  Settings settings = small_run(data, "transformer");
  Start start = on_ranks(1, {});
  start.launcher = on_ranks(2, {}).launcher;
  start.launcher.resize(start.launcher.size() - 2);
  start.environment = on_ranks(2, {}).environment;
  // mpirun -np 1 longspan ... seed=1 : -np 1 longspan ... seed=2
  std::vector<std::string> first = train_words(settings, folder / "run"), second = first;
  second.insert(second.end(), {"--set", "seed=8"});
  start.launcher.insert(start.launcher.end(), {"-np", "1"});
  start.arguments = first;
  start.arguments.insert(start.arguments.end(), {":", "-np", "1", LONGSPAN_PROGRAM});
  start.arguments.insert(start.arguments.end(), second.begin(), second.end());
  const Outcome o = run(start);
  EXPECT_NE(o.code, 0);
  EXPECT_NE(o.err.find("seed is 7 in rank 0 and 8 in rank 1"), std::string::npos) << o.err;
  EXPECT_FALSE(fs::exists(folder / "run"));
}

// What a kill leaves can be read, and goes on to the bits of a run that was not killed.
void kill_and_go_on(const SmallData& data, int signal, double after, uint64_t seed) {
  const Folder folder;
  const std::string out = folder / "run";
  Settings settings = long_run(data);
  Program program(on_ranks(2, train_words(settings, out)));
  wait_for_checkpoint(out);
  std::this_thread::sleep_for(std::chrono::duration<double>(after));
  const std::vector<pid_t> all = processes_of(out);
  ASSERT_GE(all.size(), 2u) << program.output();
  ::kill(all[philox_word(seed, 1) % all.size()], signal);
  EXPECT_TRUE(gone(out, 15)) << program.output();
  const Outcome o = program.wait();
  EXPECT_NE(o.code, 0);
  if (signal == SIGSTOP) {
    EXPECT_NE(o.err.find("did not come within 5 s"), std::string::npos) << o.err;
  }
  const std::string newest = newest_checkpoint(out);
  ASSERT_FALSE(newest.empty());
  verify_checkpoint(newest);
  const int64_t last = saved_steps(out).back(), end = last + 7;
  const Outcome next = run(on_ranks(
      2, {"train", "--resume", "--out", out, "--steps", std::to_string(end), "--set", "keep=0"}));
  ASSERT_EQ(next.code, 0) << next.err;
  settings.push_back(typed("steps", std::to_string(end)));
  settings.push_back(typed("accumulate", "2"));
  const Outcome whole = run(train_words(settings, folder / "whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    EXPECT_TRUE(read_bytes(checkpoint_path(out, end) + file) ==
                read_bytes(checkpoint_path(folder / "whole", end) + file))
        << file;
  }
}

TEST(Ranks, AKilledOneEndsAllAndTheRunGoesOn) {
  const SmallData data;
  kill_and_go_on(data, SIGKILL, 0.1, 1);
}

TEST(Ranks, AStoppedOneEndsAllWithItsName) {
  const SmallData data;
  kill_and_go_on(data, SIGSTOP, 0.1, 2);
}

TEST(Ranks, SlowManyKillsAtAnyMoment) {
  const SmallData data;
  for (uint64_t i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    kill_and_go_on(data, SIGKILL, static_cast<double>(philox_word(9, i) % 400) / 1000, i);
  }
  for (uint64_t i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    kill_and_go_on(data, SIGSTOP, static_cast<double>(philox_word(9, i) % 400) / 1000, i);
  }
}

// The clock of the first decides about the learning rate and the end. A run by time that goes on
// has a rate that changes with every moment, and processes compare it at each checkpoint.
TEST(Ranks, GoByTheClockOfTheFirst) {
  const SmallData data;
  const Folder folder;
  const std::string out = folder / "run";
  Settings settings = long_run(data);
  for (Setting& s : settings) {
    if (s.key == "steps") s = typed("seconds", "60");
    if (s.key == "schedule.name") s = typed("schedule.name", "cosine");
  }
  Program program(on_ranks(2, train_words(settings, out)));
  wait_for_checkpoint(out);
  program.send(SIGUSR1);
  const Outcome first = program.wait();
  EXPECT_EQ(first.code, 0) << first.err;
  const Outcome o = run(on_ranks(2, {"train", "--resume", "--out", out, "--seconds", "1"}));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_GT(saved_steps(out).size(), 1u);
}

TEST(Ranks, ALauncherThatDoesNotServeMpiIsNamed) {
  const SmallData data;
  const Folder folder;
  Start start{train_words(small_run(data, "transformer"), folder / "run")};
  start.environment = {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}};
  const Outcome o = run(start);
  EXPECT_NE(o.code, 0);
  EXPECT_NE(o.err.find("ranks: 2 processes have been started, and MPI knows of 1; start them with "
                       "mpirun"),
            std::string::npos)
      << o.err;
  EXPECT_FALSE(exists(folder / "run"));
}

TEST(Ranks, OtherCommandsAreForOneProcess) {
  const Outcome o = run(on_ranks(2, {"models"}));
  EXPECT_NE(o.code, 0);
  EXPECT_EQ(count(o.err, "expected it without mpirun"), 1) << o.err;
}

/// `of_one`: the signal goes to one process alone.
void stop_cleanly(bool of_one) {
  const SmallData data;
  const Folder folder;
  const std::string out = folder / "run";
  Program program(on_ranks(2, train_words(long_run(data), out)));
  wait_for_checkpoint(out);
  if (of_one) {
    ::kill(processes_of(out).back(), SIGUSR1);
  } else {
    program.send(SIGUSR1);
  }
  const Outcome o = program.wait();
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("stopped after step"), std::string::npos) << o.err;
  EXPECT_TRUE(fs::exists(out + "/summary.json"));
}

TEST(Ranks, StopCleanlyAtASignalOfMpirun) { stop_cleanly(false); }

TEST(Ranks, StopCleanlyAtASignalToOneOfThem) { stop_cleanly(true); }

}  // namespace
}  // namespace longspan::test
