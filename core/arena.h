#pragma once

#include <cstdint>

#include "core/memory.h"

namespace longspan {

/// Returns the host's memory source: one address range, allocated from its start, with best-fit
/// blocks; freed blocks merge with their neighbours. Below the limit no memory returns to the
/// system, so a training step that repeats its requests touches no fresh page. The range uses huge
/// pages if the system grants them, except where memory was given up at the limit. The last huge
/// page may extend beyond the limit. Under a limit on addresses or data (ulimit -v, ulimit -d) the
/// range leaves half of what the system grants to the rest of the program, 512 MiB at most.
memory::Source host_arena();

}  // namespace longspan
