// The objects of longspan with the second device of harness/shadow.h behind --device cuda.
#include "tests/harness/shadow.h"

namespace {

[[maybe_unused]] const bool enabled = [] {
  longspan::test::enable_shadow_device();
  return true;
}();

}  // namespace
