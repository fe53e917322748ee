#pragma once

#include <string>
#include <string_view>

namespace longspan {

// Besides the program's options, the bits of results depend on these values: docs/determinism.md.

/// Describes this build in one line: version, compiler, optimisation and sanitizers.
const std::string& build_description();

/// Returns the instruction set of the CPU kernels: "avx512-bf16", "avx512", "avx2", "portable", or
/// the name of another target. Empty before register_backends().
std::string_view cpu_instructions();
/// Called by the CPU backend once it has chosen its instruction set.
void set_cpu_instructions(std::string name);

}  // namespace longspan
