#pragma once

#include <cstdint>

namespace longspan::test {

/// From now on the `n`-th call of operator new, in any thread, fails (0: the next one); it fails
/// once. This program's operator new is its own: plain, array, aligned and nothrow.
void fail_new_after(int64_t n);
/// No call fails from here on. Returns whether one has since fail_new_after().
bool stop_failing_new();

}  // namespace longspan::test
