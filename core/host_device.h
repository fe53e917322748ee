#pragma once

/// Marks a function that runs on the host and, when compiled by nvcc, on the device too.
#if defined(__CUDACC__)
#define LONGSPAN_HD __host__ __device__
#else
#define LONGSPAN_HD
#endif
