#include "tests/harness/device.h"

#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "tests/harness/host_device.h"
#if LONGSPAN_EMULATED
#include "tests/cuda/emulated/device.h"
#endif

namespace longspan::test {

void enable_device_if_asked() {
  const char* const asked = std::getenv("LONGSPAN_TEST_DEVICE");
  if (asked == nullptr) return;
  const std::string_view name = asked;
  if (name == "host") return enable_host_device();
#if LONGSPAN_EMULATED
  if (name == "emulated") return emulated::enable();
  if (name == "guarded") return emulated::enable_guarded();
#endif
  fail<ValueError>("LONGSPAN_TEST_DEVICE", "there is no {} in this build", name);
}

}  // namespace longspan::test
