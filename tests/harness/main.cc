#include <gtest/gtest.h>

#include "core/kernel.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  longspan::register_backends();
  return RUN_ALL_TESTS();
}
