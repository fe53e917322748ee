#include "app/program.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "app/commands.h"
#include "app/tasks/table.h"
#include "core/build.h"
#include "core/error.h"
#include "core/kernel.h"
#include "core/ranks/communicator.h"
#include "core/ranks/transport_module.h"
#include "data/io/files.h"
#include "models/all/registry.h"
#include "nn/nearest.h"

namespace longspan {
namespace {

struct NamedCommand {
  const char* name;
  int (*run)(int argc, const char* const* argv);
  const char* about;
};

constexpr NamedCommand commands[] = {
    {"train", train_command, "train a model and leave a run folder"},
    {"eval", eval_command, "score a checkpoint, in bits per byte or what the task has"},
    {"generate", generate_command, "sample text from a checkpoint"},
    {"predict", predict_command, "the labels of texts, one on each line"},
    {"answer", answer_command, "what a text answers to questions"},
    {"summarise", summarise_command, "the sentences of texts that a trained model chooses"},
    {"import", import_command, "make a run of a checkpoint of the package transformers"},
    {"export", export_command, "write a checkpoint as a folder that transformers reads"},
    {"models", models_command, "list the models and their presets, or the keys of one"},
    {"tasks", tasks_command, "list what can be trained on, or the keys of one task"},
    {"data", data_command, "look at a data set"},
    {"tokens", tokens_command, "train and use tokenizers"},
    {"draw", draw_command, "draw and count which pairs a model attends to"},
    {"memory", memory_command, "what training will need, before it runs"},
    {"summary", summary_command, "the parts of a model: parameters, cost, shapes"},
    {"info", info_command, "what a run, a checkpoint, a hub folder or a tensor file holds"},
    {"profile", profile_command, "where the time of a training step goes"},
    {"compare", compare_command, "runs beside each other: figures, options, curves"},
    {"sweep", sweep_command, "train with all combinations of some values, and find the best"},
    {"study", study_command,
     "measure memory, time, approximations and quality: longspan study --help"},
};

/// Returns a number of parameters in few digits.
std::string amount(int64_t n) {
  if (n < 10'000) return fmt::format("{}", n);
  return n < 1'000'000 ? fmt::format("{:.0f} K", static_cast<double>(n) / 1e3)
                       : fmt::format("{:.1f} M", static_cast<double>(n) / 1e6);
}

/// Returns the file name of a program: "longspan", or what a program of one's own is called.
/// Allocates nothing.
const char* name_of_program(int argc, const char* const* argv) {
  const char* const path = argc > 0 ? argv[0] : "";
  const char* const slash = std::strrchr(path, '/');
  const char* const name = slash != nullptr ? slash + 1 : path;
  return *name != '\0' ? name : "longspan";
}

std::string usage(const std::string& program) {
  std::string text = "usage: " + program + " COMMAND [options]; " + program +
                     " COMMAND --help lists them\n       " + program + " --version\n";
  for (const NamedCommand& c : commands) {
    text +=
        "  " + std::string(c.name) + std::string(10 - std::strlen(c.name), ' ') + c.about + "\n";
  }
  return text;
}

/// Says whether kernels run on CUDA devices, and on how many.
std::string cuda_devices() {
  if (!count_devices.has(DeviceKind::cuda)) return "not in this build";
  int count = 0;
  count_devices(Device{DeviceKind::cuda, 0}, &count);
  return fmt::format("{} device{}", count, count == 1 ? "" : "s");
}

/// Returns the module for MPI that is there, without loading it.
std::string mpi_module() {
  std::error_code error;
  for (const std::string& place : mpi_module_places()) {
    if (std::filesystem::exists(place, error)) return place;
  }
  return "no module; runs have one process";
}

/// The version, and on the lines after it what the bits and the speed of runs depend on.
std::string version(const std::string& program) {
  const std::string own = program == "longspan" ? "" : program + ", built on ";
  return fmt::format("{}longspan {}\nbuild      {}\nprocessor  {}\nCUDA       {}\nMPI        {}\n",
                     own, LONGSPAN_VERSION, build_description(), cpu_instructions(), cuda_devices(),
                     mpi_module());
}

/// Opens closed standard streams, so that no file of ours gets their descriptors.
void open_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (fcntl(stream, F_GETFD) == -1 && open("/dev/null", O_RDWR) != stream) std::abort();
  }
}

/// Returns the exit status, which is a failure if standard output could not be written.
int flushed(int status, const std::string& program) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "%s: cannot write to standard output: %s\n", program.c_str(),
               error_text().c_str());
  return status != 0 ? status : 1;
}

/// Runs the command that argv[1] names.
int run_command(int argc, char** argv, const std::string& program) {
  open_standard_streams();
  ignore_file_size_signal();  // standard output may be a file too
  flush_lines();
  register_backends();
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(usage(program).c_str(), stdout);
    return flushed(0, program);
  }
  if (name == "--version") {
    std::fputs(version(program).c_str(), stdout);
    return flushed(0, program);
  }
  const Launched together = launched();
  if (together.processes > 1 && name != "train") {
    if (!together.first) return 0;  // so that mpirun lets the first say why
    fail("ranks", "longspan {} runs in one process; expected it without mpirun", name);
  }
  std::vector<std::string> names;
  for (const NamedCommand& c : commands) {
    if (name == c.name) {
      const std::string whole = program + " " + name;
      std::vector<const char*> rest(argv + 1, argv + argc);
      rest[0] = whole.c_str();
      return flushed(c.run(argc - 1, rest.data()), program);
    }
    names.emplace_back(c.name);
  }
  const std::string near = nearest(name, names);
  if (!name.empty()) {
    const std::string why =
        fmt::format("{}: there is no command \"{}\"{}", program, name,
                    near.empty() ? "" : fmt::format("; did you mean {}?", near));
    std::fprintf(stderr, "%s\n", Error(why).what());
  }
  std::fputs(usage(program).c_str(), stderr);
  return 2;
}

}  // namespace

int models_command(int argc, const char* const* argv) {
  const std::string name = name_given(argc, argv, "models",
                                      "longspan models [NAME]: every model and preset, or the keys "
                                      "of one, with their values and meanings.");
  if (!name.empty()) {
    const std::unique_ptr<ModelSpec> model = find_model(name);
    std::fputs(to_toml(to_json(*model), keys_of(*model)).c_str(), stdout);
    return 0;
  }
  for (const ModelEntry& entry : models()) {
    std::puts(fmt::format("{}  {}", entry.name, entry.description).c_str());
    for (const Preset& preset : entry.presets) {
      const std::string whole = &preset == entry.presets.data()
                                    ? std::string(entry.name)
                                    : fmt::format("{}:{}", entry.name, preset.name);
      std::puts(fmt::format("  {:<36} {:>9} parameters  {}", whole,
                            amount(entry.make(preset.name)->parameters()), preset.description)
                    .c_str());
    }
  }
  return 0;
}

int run_program(int argc, char** argv, std::initializer_list<ModelEntry> own_models,
                std::initializer_list<SampleTaskEntry> own_tasks, OnRow told) try {
  struct Telling {  // while this call runs
    explicit Telling(OnRow told) { on_row() = std::move(told); }
    ~Telling() { on_row() = {}; }
  } const telling(std::move(told));
  for (const ModelEntry& entry : own_models) register_model(entry);
  for (const SampleTaskEntry& entry : own_tasks) register_task(entry);
  return run_command(argc, argv, name_of_program(argc, argv));
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
} catch (const std::bad_alloc&) {
  std::fprintf(stderr,
               "%s%s%s: out of memory on the host, beside the tensors; shorten the sequence, "
               "shrink the batch or the model, or end other programs\n",
               name_of_program(argc, argv), argc > 1 ? " " : "", argc > 1 ? argv[1] : "");
  return 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s: %s\n", name_of_program(argc, argv), Error(e.what()).what());
  return 1;
}

}  // namespace longspan

// OpenBLAS starts a thread for every processor when it is loaded. This program never uses them: its
// products run in the engine's threads. OpenBLAS calls this function of its own for the number of
// threads, and the program's definition takes precedence.

extern "C" int openblas_num_threads_env();
extern "C" int openblas_num_threads_env() { return 1; }
