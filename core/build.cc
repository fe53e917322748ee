#include "core/build.h"

#include <fmt/core.h>

#include <utility>

namespace longspan {
namespace {

std::string& instructions() {
  static std::string name;
  return name;
}

constexpr std::string_view compiler =
#if defined(__clang__)
    "clang ";
#elif defined(__GNUC__)
    "g++ ";
#else
    "";
#endif

constexpr std::string_view optimisation =
#if defined(__OPTIMIZE__)
    ", optimised";
#else
    ", not optimised";
#endif

constexpr std::string_view vectors =
#if defined(HWY_COMPILE_ONLY_STATIC)
    ", for one processor";
#else
    "";
#endif

constexpr std::string_view mathematics =
#if defined(__FAST_MATH__)
    ", fast-math";
#else
    "";
#endif

}  // namespace

const std::string& build_description() {
  static const std::string text =
      fmt::format("{}, {}{}{}{}{}{}", LONGSPAN_VERSION, compiler, __VERSION__, optimisation,
                  vectors, mathematics, LONGSPAN_SANITIZERS);
  return text;
}

std::string_view cpu_instructions() { return instructions(); }

void set_cpu_instructions(std::string name) { instructions() = std::move(name); }

}  // namespace longspan
