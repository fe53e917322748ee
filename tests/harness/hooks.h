#pragma once

#include <vector>

namespace longspan::test {

/// Called by main() after the backends are registered and before the tests run, to add tests.
inline std::vector<void (*)()>& before_tests() {
  static std::vector<void (*)()> hooks;
  return hooks;
}

}  // namespace longspan::test
