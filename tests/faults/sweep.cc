#include "tests/faults/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "core/error.h"
#include "core/parallel.h"
#include "tests/faults/injected_new.h"

namespace longspan::test {
namespace {

constexpr unsigned kSecondsOfOne = 60;

/// Memory that the processes share.
struct Shared {
  Tally tally;
  int64_t next;
  bool done;
};

void bad(Tally& t, int64_t& count, int64_t n) {
  ++count;
  if (t.first_bad < 0) t.first_bad = n;
}

/// Injects one failure. Returns false if act() makes too few calls to reach it.
bool fail_one(Trial& trial, int64_t n, Tally& t) {
  trial.reset();
  enum { nothing, error, other } thrown = nothing;
  fail_new_after(n);
  try {
    trial.act();
  } catch (const Error&) {
    thrown = error;
  } catch (...) {
    thrown = other;
  }
  if (!stop_failing_new()) return false;
  ++t.injected;
  if (thrown == nothing) {
    ++t.survived;
    if (!trial.finished()) bad(t, t.half, n);
    return true;
  }
  if (thrown == other) bad(t, t.unnamed, n);
  if (!trial.unchanged() && !trial.finished()) {
    bad(t, t.half, n);
    return true;
  }
  trial.act();
  if (!trial.finished()) bad(t, t.other_bits, n);
  return true;
}

[[noreturn]] void run(const std::function<std::unique_ptr<Trial>()>& make, int64_t stride,
                      bool cold, Shared& shared) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  const int quiet = open("/dev/null", O_WRONLY);
  if (std::getenv("LONGSPAN_FAULTS_LOUD") == nullptr) dup2(quiet, STDERR_FILENO);
  set_num_threads(2);
  const std::unique_ptr<Trial> trial = make();
  if (!cold) {
    trial->reset();
    trial->act();
  }
  do {
    alarm(kSecondsOfOne);
    shared.done = !fail_one(*trial, shared.next, shared.tally);
    shared.next += stride;
  } while (!shared.done && !cold);
  _exit(0);
}

}  // namespace

std::string to_string(const Tally& t) {
  return fmt::format(
      "{} injected, {} aborted, {} half changed, {} ended in other bits, {} without a name, {} "
      "made "
      "good; the first bad one {}",
      t.injected, t.aborted, t.half, t.other_bits, t.unnamed, t.survived, t.first_bad);
}

Tally sweep(const std::function<std::unique_ptr<Trial>()>& make, int64_t stride, int64_t first,
            bool cold) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "sweep", "no memory to share");
  auto& shared = *new (memory) Shared{{}, first, false};
  while (!shared.done) {
    const pid_t child = fork();
    require(child >= 0, "sweep", "no process to be had");
    if (child == 0) run(make, stride, cold, shared);
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++shared.tally.injected;
    bad(shared.tally, shared.tally.aborted, shared.next);
    shared.next += stride;
  }
  const Tally tally = shared.tally;
  munmap(memory, sizeof(Shared));
  return tally;
}

}  // namespace longspan::test
