// What the program writes to a terminal: the status line, the answer to Ctrl-C, and messages about
// files that hold something else than text.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/state.h"

namespace longspan::test {
namespace {

Words training(const std::string& text, const std::string& out, const Words& more) {
  Words all = {"--threads", "1"};
  all.insert(all.end(), more.begin(), more.end());
  return small_training(text, out, all);
}

/// Runs the program with a terminal of 200 columns as standard output and error; returns what it
/// writes there.
std::string on_terminal(Words words) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return {};
  words.insert(words.begin(), LONGSPAN_PROGRAM);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  const winsize size{.ws_row = 50, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
  ioctl(slave, TIOCSWINSZ, &size);
  const pid_t child = fork();
  if (child == 0) {
    dup2(slave, 1);
    dup2(slave, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(slave);
  std::string text;
  char some[4096];
  for (ssize_t n;
       (n = ::read(master, some, sizeof some)) > 0;) {  // fails when the program has ended
    text.append(some, static_cast<size_t>(n));
  }
  waitpid(child, nullptr, 0);
  close(master);
  return text;
}

/// Returns the lines that such a terminal shows in the end: \r goes to the beginning of a line, and
/// ESC [ K clears the rest of it.
Words screen(const std::string& text) {
  Words lines{""};
  size_t column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (text.compare(i, 3, "\x1b[K") == 0) {
      lines.back().resize(column);
      i += 2;
    } else {
      lines.back().resize(std::max(lines.back().size(), column + 1), ' ');
      lines.back()[column++] = text[i];
    }
  }
  return lines;
}

TEST(Terminal, ResultsHaveLinesOfTheirOwn) {
  const Folder folder;
  write(folder / "text", some_text(20'000));
  const std::string text = on_terminal(
      training(folder / "text", folder / "run", {"--steps", "40", "--eval-every", "20"}));
  if (text.empty()) GTEST_SKIP() << "skipped: no pseudo-terminals here (is devpts mounted?)";
  const Words lines = screen(text);
  int scores = 0, progress = 0, results = 0;
  for (const std::string& line : lines) {
    const bool score = line.find(") on 1000 bytes of validation") != std::string::npos;
    const bool status = line.starts_with("step 40/40  loss "),
               result = line.starts_with("transformer: 40 steps, 1280 tokens in ") ||
                        line.starts_with("training ");
    scores += score ? 1 : 0;
    progress += status ? 1 : 0;
    results += result ? 1 : 0;
    if (score) {
      EXPECT_TRUE(line.starts_with("step 20: ") || line.starts_with("step 40: ")) << line;
    }
    EXPECT_FALSE(line.starts_with("step 20/40")) << "an old status line: " << line;
    EXPECT_EQ(line.find('{'), std::string::npos) << "JSON is for --json: " << line;
  }
  EXPECT_EQ(scores, 2) << text;
  EXPECT_EQ(progress, 1) << text;
  EXPECT_EQ(results, 2) << text;
}

/// Waits until a program has said something.
bool has_said(Program& program, const std::string& what) {
  const double end = now() + 60;
  while (now() < end && program.output().find(what) == std::string::npos && program.running()) {
    usleep(2000);
  }
  return program.output().find(what) != std::string::npos;
}

TEST(Terminal, CtrlCSaysWhatGoesOnAndASecondLosesNothing) {
  const Folder folder;
  write(folder / "text", some_text(4'000'000));  // most of which is scored
  const Words run = training(folder / "text", folder / "run",
                             {"--steps", "1000000", "--split", "10/90/0", "--log-every", "1"});
  Program program(Start{run});
  ASSERT_TRUE(has_said(program, "step 1/"));
  program.send(SIGINT);
  EXPECT_TRUE(has_said(program, "stopping: what is under way is finished first"));
  ASSERT_TRUE(has_said(program, "bytes of validation are scored. Another signal leaves that out"))
      << program.output();
  const double begin = now();
  program.send(SIGINT);
  const Outcome o = program.wait();
  EXPECT_LT(now() - begin, 2);
  EXPECT_EQ(o.code, 128 + SIGINT);
  const std::string saved = newest_checkpoint(folder / "run");
  ASSERT_NE(saved, "");
  EXPECT_NE(o.err.find(saved.substr(saved.rfind('-') + 1) + " is saved"), std::string::npos)
      << o.err;
  EXPECT_NO_THROW(verify_checkpoint(saved));
}

/// Whether a text can be shown: no control characters but line breaks.
bool plain(const std::string& text) {
  for (const char c : text) {
    if (c != '\n' && (static_cast<uint8_t>(c) < 0x20 || c == 0x7F)) return false;
  }
  return true;
}

// Files that a hostile hand wrote: messages name them, are short, and hold nothing that a terminal
// obeys.
TEST(Terminal, MessagesAboutHostileFilesAreShortPlainText) {
  const Folder folder;
  const std::string escape = "\x1b[2J", huge(900'000, 'v');
  const std::string text = folder / "text", out = folder / "run";
  write(text, some_text(2000));
  struct Case {
    std::string file, content;
    Words arguments;
    std::string says;
  };
  const std::string config = folder / "a.toml", bpe = folder / "bpe";
  const auto train = [&] { return Words{"train", "--config", config, "--out", out}; };
  std::string bytes = "{";
  for (int i = 0, next = 256; i < 256; ++i) {  // the characters of byte-level vocabularies
    const bool own = (i >= 33 && i <= 126) || (i >= 0xA1 && i != 0xAD);
    char c[8];
    std::snprintf(c, sizeof c, "\\u%04x", own ? i : next++);
    bytes += (i > 0 ? ",\"" : "\"") + std::string(c) + "\":" + std::to_string(i);
  }
  write(bpe + "/vocab.json", bytes + "}");
  const Case cases[] = {
      {config, "\"\\u001b[2Jevil\" = 1\n", train(), "a.toml:1"},
      {config, "\"\\u0000x\" = 1\n", train(), "a.toml:1"},
      {config, "\"\\u202egpj\" = 1\n", train(), "a.toml:1"},
      {config, "x = \"" + huge + "\"\n", train(), "a.toml:1"},
      {config, "task = \"" + huge + "\"\n", train(), "a.toml:1"},
      {config, "task = \"\\u001b[2J\\n\\u0000\"\n", train(), "a.toml:1"},
      {config, "split = \"\\u001b[2J\"\n", train(), "a.toml:1"},
      {config, "length = 0\n", train(), "a.toml:1"},
      {config,
       "[period]\nperiod = -1\n",
       {"train", "--config", config, "--task", "period", "--out", out},
       "a.toml:2"},
      {config, "[model]\nname = \"" + huge + "\"\n", train(), "a.toml:2"},
      {config, "[model]\nmemory = \"\\u001b[2J\"\n", train(), "a.toml:2"},
      {config, "[optimizer]\nname = \"\\u001b[2J\"\n", train(), "a.toml:2"},
      {config, escape + " = 1\n", train(), "a.toml:1"},
      {config, huge, train(), "a.toml:1"},
      {bpe + "/merges.txt",
       std::string(10'000'000, 'a') + "\n",
       {"tokens", "encode", "--tokenizer", bpe, "--text", "a"},
       "merges.txt"},
      {bpe + "/merges.txt",
       escape + std::string("\0", 1) + "a\n",
       {"tokens", "encode", "--tokenizer", bpe, "--text", "a"},
       "merges.txt"},
      {folder / "vocab.txt",
       "[UNK]\n" + huge + "\n" + huge + "\n",
       {"tokens", "encode", "--tokenizer", folder / "vocab.txt", "--text", "a"},
       "vocab.txt"},
      {folder / "p.fasta",
       ">" + escape + huge + "\nAC" + escape + "\n",
       {"data", "check", "dna", "--data", "dna=" + (folder / "p.fasta")},
       "p.fasta"},
      {folder / "c",
       "abc " + escape,
       {"data", "check", "chars", "--data", "chars=" + (folder / "c")},
       "/c"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.file + ": " + c.content.substr(0, 40));
    write(c.file, c.content);
    const Outcome o = run(c.arguments);
    EXPECT_EQ(o.code, 1);
    EXPECT_TRUE(plain(o.err)) << o.err;
    EXPECT_LT(o.err.size(), 1000u);
    EXPECT_NE(o.err.find(c.says), std::string::npos) << o.err;
    EXPECT_FALSE(exists(out));
  }
}

}  // namespace
}  // namespace longspan::test
