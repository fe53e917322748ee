#pragma once

#include <vector>

namespace longspan::test {

/// Returns the functions that main() calls after the backends are registered and before the tests
/// run, to add tests.
inline std::vector<void (*)()>& before_tests() {
  static std::vector<void (*)()> hooks;
  return hooks;
}

}  // namespace longspan::test
