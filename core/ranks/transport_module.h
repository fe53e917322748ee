#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

/// The interface of a loadable module that moves bytes between processes. Its function
/// `longspan_transport()`, with C linkage, starts the transport and returns this struct. Transport
/// documents the other functions.
struct TransportModule {
  static constexpr int current = 1;
  int version;
  int rank, size, local_rank, local_size;
  const char* host;
  void* (*send)(int to, int tag, const void* data, int64_t bytes);
  void* (*receive)(int from, int tag, void* data, int64_t bytes);
  int (*ended)(void* request);
  void (*end_all)();
  void (*finish)();
};

/// Returns where open_communicator() looks for such a module, in order: the file that $LONGSPAN_MPI
/// names, beside the program, and where it is installed. It takes the first that it can load.
std::vector<std::string> mpi_module_places();

}  // namespace longspan
