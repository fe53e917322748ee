// The drivers of examples/, run as programs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tests/system/program.h"

namespace longspan::test {
namespace {

/// Returns what a driver has written to a pipe when its first line ends or the seconds are over.
/// Then kills the driver.
std::string first_line(const char* driver, const char* steps, double seconds) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    execl(driver, driver, "--steps", steps, static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[1]);
  std::string text;
  const double end = now() + seconds;
  while (text.find('\n') == std::string::npos && now() < end) {
    pollfd wait{ends[0], POLLIN, 0};
    if (poll(&wait, 1, 100) <= 0) continue;
    char some[256];
    const ssize_t n = ::read(ends[0], some, sizeof some);
    if (n <= 0) break;
    text.append(some, static_cast<size_t>(n));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ends[0]);
  return text;
}

/// A driver that is killed has already written the lines that it printed.
TEST(Drivers, LinesArriveAtAPipeWhenTheyEnd) {
  const std::string text = first_line(LONGSPAN_DRIVER, "100000000", 20);
  EXPECT_EQ(text.find("loss "), 0u) << text;
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace longspan::test
