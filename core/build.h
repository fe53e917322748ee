#pragma once

#include <string>
#include <string_view>

namespace longspan {

// What the bits of results depend on besides the program's options: docs/determinism.md.

/// This build: version, compiler, optimisation and sanitizers, in one line.
const std::string& build_description();

/// The instructions that kernels on the CPU use: "avx512-bf16", "avx512", "avx2", "portable", or
/// the name of another target. Empty before register_backends().
std::string_view cpu_instructions();
/// For the backend, once it has chosen.
void set_cpu_instructions(std::string name);

}  // namespace longspan
