#include "tests/system/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "data/io/json.h"
#include "train/log.h"

namespace longspan::test {
namespace {

namespace fs = std::filesystem;

void limit(int what, int64_t bytes) {
  if (bytes < 0) return;
  const rlimit value{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
  setrlimit(static_cast<__rlimit_resource>(what), &value);
}

std::string temporary_file() {
  std::string name = (fs::temp_directory_path() / "longspan-output-XXXXXX").string();
  const int file = mkstemp(name.data());
  require(file >= 0, "test", "no temporary file like {}", name);
  close(file);
  return name;
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string Outcome::last_line() const {
  size_t end = out.size();
  while (end > 0 && out[end - 1] == '\n') --end;
  const size_t begin = end == 0 ? std::string::npos : out.rfind('\n', end - 1);
  return out.substr(begin == std::string::npos ? 0 : begin + 1,
                    end - (begin == std::string::npos ? 0 : begin + 1));
}

Program::Program(const Start& start)
    : out_path_(temporary_file()), err_path_(temporary_file()), started_(now()) {
  std::vector<std::string> words = start.launcher;
  words.emplace_back(start.with_device ? LONGSPAN_WITH_DEVICE : LONGSPAN_PROGRAM);
  words.insert(words.end(), start.arguments.begin(), start.arguments.end());
  const std::string command = start.arguments.empty() ? "" : start.arguments[0];
  const bool given = std::find(words.begin(), words.end(), "--json") != words.end();
  if (start.json && !given && (command == "train" || command == "eval")) {
    words.emplace_back("--json");
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  require(pid_ >= 0, "test", "fork failed");
  if (pid_ == 0) {
    const std::string& out_path = start.out.empty() ? out_path_ : start.out;
    const int out = open(out_path.c_str(), O_WRONLY | O_TRUNC);
    const int err = open(err_path_.c_str(), O_WRONLY | O_TRUNC);
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    for (const int file : {in, out, err}) {
      if (file > 2) close(file);
    }
    if (start.closed) close(0), close(1);
    if (!start.folder.empty() && chdir(start.folder.c_str()) != 0) _exit(126);
    for (const auto& [name, value] : start.environment) setenv(name.c_str(), value.c_str(), 1);
    limit(RLIMIT_FSIZE, start.file_limit);
    limit(RLIMIT_AS, start.memory_limit);
    limit(RLIMIT_DATA, start.data_limit);
    execvp(argv[0], argv.data());
    _exit(127);
  }
}

Program::~Program() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    wait();
  }
  unlink(out_path_.c_str());
  unlink(err_path_.c_str());
}

void Program::send(int signal) const { kill(pid_, signal); }

void Program::collect(int status) {
  ended_ = true;
  outcome_.seconds = now() - started_;
  outcome_.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome_.out = read(out_path_);
  outcome_.err = read(err_path_);
}

bool Program::running() {
  int status = 0;
  if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) collect(status);
  return !ended_;
}

Outcome Program::wait() {
  int status = 0;
  if (!ended_ && waitpid(pid_, &status, 0) == pid_) collect(status);
  return outcome_;
}

std::string Program::output() const { return read(out_path_) + read(err_path_); }

Words joined(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::string> small_training(const std::string& text, const std::string& out,
                                        const std::vector<std::string>& more) {
  return joined({"train", "--model", "transformer", "--data", "bytes=" + text, "--length", "16",
                 "--batch", "2", "--layers", "1", "--set", "model.d_model=16", "--set",
                 "model.n_head=2", "--set", "model.d_ff=16", "--out", out},
                more);
}

Outcome run(const Start& start) { return Program(start).wait(); }

Outcome run(std::vector<std::string> arguments) { return run(Start{std::move(arguments)}); }

void expect_each_sample_once(const std::vector<std::string>& training, const std::string& folder) {
  const auto losses = [&](const std::string& out, const std::vector<std::string>& more) {
    const Outcome o =
        run(joined(joined(training, {"--lr", "0", "--log-every", "1", "--out", out}), more));
    EXPECT_EQ(o.code, 0) << o.err;
    std::vector<std::string> all;
    for (const Json& row : read_rows(out + "/metrics.jsonl")) {
      if (const Json* loss = row.find("loss")) all.push_back(to_string(*loss));
    }
    return all;
  };
  // 10 samples in five steps of one and one, then two steps of five.
  const std::string whole = folder + "/five", parts = folder + "/two and five";
  const std::vector<std::string> five{"--batch", "5", "--set", "accumulate=1"};
  const std::vector<std::string> expected = losses(whole, joined(five, {"--steps", "4"}));
  losses(parts, {"--batch", "1", "--set", "accumulate=2", "--steps", "5"});
  const std::vector<std::string> found = losses(parts, joined(five, {"--steps", "7", "--resume"}));
  ASSERT_EQ(expected.size(), 4u);
  ASSERT_EQ(found.size(), 7u);
  EXPECT_EQ(found[5], expected[2]);
  EXPECT_EQ(found[6], expected[3]);
  EXPECT_NE(found[5], found[6]);  // samples differ
}

std::string read(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "rb")) {
    char buffer[65536];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
    std::fclose(file);
  }
  return text;
}

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::FILE* file = std::fopen(path.c_str(), "wb");
  require(file != nullptr, "test", "cannot write {}", path);
  const size_t written = std::fwrite(text.data(), 1, text.size(), file);
  require(std::fclose(file) == 0 && written == text.size(), "test", "cannot write {}", path);
}

bool exists(const std::string& path) { return fs::exists(path); }

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::pair<std::string, std::string>> contents(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> all;
  std::error_code missing;
  for (const auto& entry : fs::recursive_directory_iterator(folder, missing)) {
    if (entry.is_regular_file(missing)) all.emplace_back(entry.path().string(), read(entry.path()));
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::string some_text(int64_t bytes) {
  static constexpr const char* words[] = {"the ",  "quick ", "brown ", "fox ",  "jumps ",
                                          "over ", "a ",     "lazy ",  "dog.\n"};
  std::string text;
  uint32_t state = 12345;
  while (static_cast<int64_t>(text.size()) < bytes) {
    state = state * 1664525u + 1013904223u;
    text += words[(state >> 16) % std::size(words)];
  }
  text.resize(static_cast<size_t>(bytes));
  return text;
}

}  // namespace longspan::test
