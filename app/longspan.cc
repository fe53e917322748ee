// The general program: trains, evaluates and samples every model of the library.
#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "app/commands.h"
#include "core/error.h"
#include "core/kernel.h"
#include "data/io/files.h"
#include "data/io/nearest.h"

namespace {

struct Command {
  const char* name;
  int (*run)(int argc, const char* const* argv);
  const char* about;
};

constexpr Command commands[] = {
    {"train", longspan::train_command, "train a model and leave a run folder"},
    {"eval", longspan::eval_command, "score a checkpoint, in bits per byte or what the task has"},
    {"generate", longspan::generate_command, "sample text from a checkpoint"},
    {"models", longspan::models_command, "list the models and their presets"},
    {"data", longspan::data_command, "look at a data set"},
    {"tokens", longspan::tokens_command, "train and use tokenizers"},
    {"draw", longspan::draw_command, "draw and count which pairs a model attends to"},
    {"memory", longspan::memory_command, "what training will need, before it runs"},
    {"study", longspan::study_command, "measure it: longspan study memory"},
};

std::string usage() {
  std::string text =
      "usage: longspan COMMAND [options]; longspan COMMAND --help lists them\n"
      "       longspan --version\n";
  for (const Command& c : commands) {
    text +=
        "  " + std::string(c.name) + std::string(10 - std::strlen(c.name), ' ') + c.about + "\n";
  }
  return text;
}

/// Opens closed standard streams, so that no file of ours gets their descriptors.
void open_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (fcntl(stream, F_GETFD) == -1 && open("/dev/null", O_RDWR) != stream) std::abort();
  }
}

/// Returns the exit status, which is a failure if standard output could not be written.
int flushed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "longspan: cannot write to standard output: %s\n",
               longspan::error_text().c_str());
  return status != 0 ? status : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  open_standard_streams();
  longspan::ignore_file_size_signal();  // standard output may be a file too
  longspan::flush_lines();
  longspan::register_backends();
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(usage().c_str(), stdout);
    return flushed(0);
  }
  if (name == "--version") {
    std::puts("longspan " LONGSPAN_VERSION);
    return flushed(0);
  }
  std::vector<std::string> names;
  for (const Command& c : commands) {
    if (name == c.name) {
      const std::string whole = "longspan " + name;
      std::vector<const char*> rest(argv + 1, argv + argc);
      rest[0] = whole.c_str();
      return flushed(c.run(argc - 1, rest.data()));
    }
    names.emplace_back(c.name);
  }
  const std::string near = longspan::nearest(name, names);
  if (!name.empty()) {
    std::fprintf(stderr, "longspan: there is no command \"%s\"%s%s%s\n", name.c_str(),
                 near.empty() ? "" : "; did you mean ", near.c_str(), near.empty() ? "" : "?");
  }
  std::fputs(usage().c_str(), stderr);
  return 2;
} catch (const longspan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
} catch (const std::bad_alloc&) {
  std::fprintf(stderr,
               "longspan%s%s: out of memory on the host, beside the tensors; shorten the sequence, "
               "shrink the batch or the model, or end other programs\n",
               argc > 1 ? " " : "", argc > 1 ? argv[1] : "");
  return 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "longspan: %s\n", e.what());
  return 1;
}

// OpenBLAS starts a thread for every processor when it is loaded. This program never uses them: its
// products run in the engine's threads. OpenBLAS calls this function of its own for the number of
// threads, and the program's definition takes precedence.

extern "C" int openblas_num_threads_env();
extern "C" int openblas_num_threads_env() { return 1; }
