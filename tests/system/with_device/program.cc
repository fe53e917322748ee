// Builds longspan with a second device behind --device cuda: the device of LONGSPAN_TEST_DEVICE, or
// else the host-backed test device of harness/host_device.h.
#include <cstdlib>

#include "tests/harness/device.h"
#include "tests/harness/host_device.h"

namespace {

[[maybe_unused]] const bool enabled = [] {
  if (std::getenv("LONGSPAN_TEST_DEVICE") != nullptr) {
    longspan::test::enable_device_if_asked();
  } else {
    longspan::test::enable_host_device();
  }
  return true;
}();

}  // namespace
