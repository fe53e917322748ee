#include "app/runs/launch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "core/error.h"
#include "core/parallel.h"
#include "data/io/files.h"

namespace longspan {

pid_t launch(const Launch& what, const char* op) {
  std::vector<std::string> words = what.arguments;
  std::vector<char*> argv;
  std::string program = "longspan";
  argv.push_back(program.data());
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t parent = getpid(), pid = fork();
  require(pid >= 0, op, "a process cannot be started: {}", error_text());
  if (pid != 0) return pid;
  setpgid(0, 0);  // Ctrl-C reaches the parent, which tells its runs once
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  const int file = open(what.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (file < 0 || in < 0) _exit(1);
  dup2(in, 0);
  dup2(file, 1);
  dup2(file, 2);
  if (chdir(what.folder.c_str()) != 0) {
    dprintf(2, "%s, where %s began, is not there\n", what.folder.c_str(), op);
    _exit(1);
  }
  run_on(what.processors);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

std::string last_line_of(const std::string& log) {
  if (kind_of_path(log, "launch") != PathKind::file) return {};
  std::string text = read_file(log, "launch");
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace longspan
