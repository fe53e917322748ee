#pragma once

#include <cstdint>

namespace longspan::test {

/// Makes the `n`-th call of operator new from now on fail once, in any thread (0: the next call).
/// The program replaces every form of operator new: plain, array, aligned and nothrow.
void fail_new_after(int64_t n);
/// Stops failing calls. Returns whether a call has failed since fail_new_after().
bool stop_failing_new();

}  // namespace longspan::test
