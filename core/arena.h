#pragma once

#include <cstdint>

#include "core/memory.h"

namespace longspan {

/// The host's source of memory: one range of addresses, used from its start, in which freed blocks
/// merge with their neighbours and the best fit is taken. Nothing goes back to the system, so a
/// training step that repeats its requests touches no fresh page. On huge pages where the system
/// grants them.
memory::Source host_arena();

}  // namespace longspan
