#pragma once

#include <cstdint>

#include "core/memory.h"

namespace longspan {

/// The host's source of memory: one range of addresses, used from its start, in which freed blocks
/// merge with their neighbours and the best fit is taken. Below the limit nothing goes back, so a
/// training step that repeats its requests touches no fresh page. On huge pages where the system
/// grants them, but not where memory was given up at the limit; the last may reach beyond the limit.
memory::Source host_arena();

}  // namespace longspan
