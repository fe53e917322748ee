#include "core/error.h"
#include "cuda/attention_launch.h"

namespace longspan::cuda {

unsigned attention_grid(const char* name, int64_t blocks) {
  require(blocks <= INT32_MAX, name, "{} blocks of threads do not fit a launch", blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace longspan::cuda
