#include "cuda/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace longspan::cuda {
namespace {

/// Sets a function from the library; returns whether it is there, and names it if not.
template <class F>
bool find(void* library, const char* name, F& function, std::string& missing) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) missing = name;
  return function != nullptr;
}

}  // namespace

const Nccl* Nccl::loaded(std::string& problem) {
  const char* const asked = std::getenv("LONGSPAN_NCCL");
  if (asked != nullptr && std::string_view(asked) == "off") {
    problem = "LONGSPAN_NCCL is off";
    return nullptr;
  }
  const char* const name = asked != nullptr ? asked : "libnccl.so.2";
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    problem = fmt::format("NCCL cannot be loaded ({}); LONGSPAN_NCCL may name it",
                          why != nullptr ? why : name);
    return nullptr;
  }
  static Nccl all;
  std::string missing;
  const bool complete = find(library, "ncclGetUniqueId", all.unique_id, missing) &&
                        find(library, "ncclCommInitRank", all.init_rank, missing) &&
                        find(library, "ncclCommGetAsyncError", all.async_error, missing) &&
                        find(library, "ncclGroupStart", all.group_start, missing) &&
                        find(library, "ncclGroupEnd", all.group_end, missing) &&
                        find(library, "ncclSend", all.send, missing) &&
                        find(library, "ncclRecv", all.receive, missing) &&
                        find(library, "ncclGetErrorString", all.error_text, missing);
  if (complete) return &all;
  problem = fmt::format("{} has no {}; NCCL 2.7 or newer does", name, missing);
  return nullptr;
}

}  // namespace longspan::cuda
