#include <gtest/gtest.h>

#include "core/backends.h"
#include "core/best_fit.h"
#include "core/kernel.h"
#include "core/kernels/copy.h"
#include "core/kernels/matmul.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "tests/harness/device.h"

namespace longspan {
namespace {

using test::cuda;
using test::has_device;

/// Returns whether this build has the backend, with or without a device to run it.
bool built_in() { return count_devices.has(DeviceKind::cuda); }

TEST(CudaBackend, EveryKernelOfTheCpuIsThere) {
  if (!built_in()) GTEST_SKIP() << "skipped: this build has no CUDA backend";
  for (const KernelBase* kernel : KernelBase::all()) {
    if (!kernel->has(DeviceKind::cpu) || kernel == &kernels::measure_peak)
      continue;  // of processors
    EXPECT_TRUE(kernel->has(DeviceKind::cuda)) << kernel->name();
  }
}

TEST(CudaBackend, WithoutADeviceEveryCallSaysSo) {
  if (!built_in()) GTEST_SKIP() << "skipped: this build has no CUDA backend";
  if (is_available(cuda)) GTEST_SKIP() << "skipped: there is a device";
  EXPECT_THROW(Tensor::zeros({3}, DType::f32, cuda), DeviceError);
  EXPECT_THROW(parse_device("cuda"), DeviceError);
  EXPECT_THROW(memory_tracker(cuda), DeviceError);
  EXPECT_EQ(best_device(), Device{});
}

TEST(CudaBackend, BytesGoThereAndBack) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const Tensor x = Tensor::from(std::vector<float>{1, -2, 3.5f}, {3}, cuda);
  std::vector<float> back(3);
  copy_to_host(cuda, back.data(), x.view().data, 12);
  EXPECT_EQ(back, (std::vector<float>{1, -2, 3.5f}));
}

TEST(CudaBackend, MemoryIsCountedAndReused) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const MemoryTracker& tracker = memory_tracker(cuda);
  const int64_t before = tracker.live().total();
  const void* first = nullptr;
  {
    const Tensor x = Tensor::empty({1000}, DType::f32, cuda);
    first = x.view().data;
    EXPECT_EQ(tracker.live().total(), before + memory::block_bytes(4000));
  }
  EXPECT_EQ(tracker.live().total(), before);
  EXPECT_EQ(Tensor::empty({1000}, DType::f32, cuda).view().data, first);
}

TEST(CudaBackend, RunningOutLeavesADeviceThatWorks) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  memory::drop_retained();  // caches would be dropped for want of room
  const int64_t before = memory_tracker(cuda).live().total();
  EXPECT_THROW(Tensor::empty({int64_t{1} << 45}, DType::f32, cuda), OutOfMemory);
  EXPECT_EQ(memory_tracker(cuda).live().total(), before);
  Tensor x = Tensor::empty({}, DType::f32, cuda);
  kernels::fill(cuda, x.mut(), 3);
  EXPECT_EQ(x.item(), 3);
}

}  // namespace
}  // namespace longspan
