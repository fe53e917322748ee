#pragma once

#include <cstddef>
#include <functional>

namespace longspan::emulated {

/// Runs one block of threads on this host thread. Calls `body` once for each thread, with threadIdx
/// set, starting from the first or from the last. `shared` is the size of dynamic shared memory in
/// bytes.
void run_block(int threads, size_t shared, bool from_last, const std::function<void()>& body);

}  // namespace longspan::emulated
