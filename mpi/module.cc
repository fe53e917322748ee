// The module that the program loads if mpirun has started it: TransportModule on MPI. A program of
// one process loads no libmpi.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <cstdio>

#include "core/ranks/transport_module.h"

namespace {

int checked(int status, const char* call) {
  if (status == MPI_SUCCESS) return status;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  std::fprintf(stderr, "mpi: %s: %.*s\n", call, length, text);
  MPI_Abort(MPI_COMM_WORLD, 1);
  _exit(1);
}

void* send(int to, int tag, const void* data, int64_t bytes) {
  auto* request = new MPI_Request;
  checked(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD, request),
          "MPI_Isend");
  return request;
}

void* receive(int from, int tag, void* data, int64_t bytes) {
  auto* request = new MPI_Request;
  checked(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, MPI_COMM_WORLD, request),
          "MPI_Irecv");
  return request;
}

int ended(void* request) {
  auto* const own = static_cast<MPI_Request*>(request);
  int done = 0;
  checked(MPI_Test(own, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done != 0) delete own;
  return done;
}

void end_all() { MPI_Abort(MPI_COMM_WORLD, 1); }

void finish() {
  int over = 0;
  MPI_Finalized(&over);
  if (over == 0) MPI_Finalize();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const longspan::TransportModule*
longspan_transport();

extern "C" const longspan::TransportModule* longspan_transport() {
  static char host[256] = "?";
  static longspan::TransportModule module{
      longspan::TransportModule::current, 0, 1, 0, 1, host, send, receive, ended, end_all, finish};
  int running = 0, given = 0;
  MPI_Initialized(&running);
  if (running == 0)
    checked(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  checked(MPI_Comm_rank(MPI_COMM_WORLD, &module.rank), "MPI_Comm_rank");
  checked(MPI_Comm_size(MPI_COMM_WORLD, &module.size), "MPI_Comm_size");
  MPI_Comm local = MPI_COMM_NULL;
  checked(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, module.rank, MPI_INFO_NULL, &local),
      "MPI_Comm_split_type");
  MPI_Comm_rank(local, &module.local_rank);
  MPI_Comm_size(local, &module.local_size);
  MPI_Comm_free(&local);
  gethostname(host, sizeof host - 1);
  return &module;
}
