#include <gtest/gtest.h>

#include "core/kernel.h"
#include "tests/harness/device.h"
#include "tests/harness/hooks.h"

int main(int argc, char** argv) {
  longspan::register_backends();
  longspan::test::enable_device_if_asked();
  for (const auto hook : longspan::test::before_tests()) hook();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
