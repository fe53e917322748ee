#pragma once

#include <cstdint>

namespace longspan {

/// What a module that moves bytes between processes gives the program: `longspan_transport()`, with
/// C linkage, starts it and returns this. Functions are those of Transport.
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

}  // namespace longspan
