#pragma once

#include <cstddef>
#include <functional>

namespace longspan::emulated {

/// Runs one block of threads on this host thread: `body` once for each, with threadIdx set, from
/// the first or from the last. `what` names the kernel in a complaint.
void run_block(int threads, size_t shared, bool from_last, const std::function<void()>& body);

}  // namespace longspan::emulated
