// Checks that the emulated device finds the errors of wrong kernels.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/memory.h"
#include "core/tensor.h"
#include "cuda/launch.h"
#include "tests/cuda/emulated/device.h"
#include "tests/harness/messages.h"

namespace longspan::cuda {
namespace {

constexpr Device device{DeviceKind::cuda, 0};
constexpr int threads = 64;

const bool enabled = (emulated::enable_guarded(), true);

/// Computes y[i] = x[n - 1 - i] through shared memory, with or without the barrier that this needs.
template <bool barrier>
__global__ void reverse_kernel(const float* x, float* y) {
  __shared__ float kept[threads];
  const int i = static_cast<int>(threadIdx.x);
  kept[i] = x[i];
  if (barrier) __syncthreads();
  y[i] = kept[threads - 1 - i];
}

/// Computes the sum of each warp in all its lanes. The first `leaving` lanes return before the
/// exchange.
__global__ void sum_kernel(const float* x, float* y, int leaving) {
  const int i = static_cast<int>(threadIdx.x);
  if (i % 32 < leaving) return;
  float sum = x[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  y[i] = sum;
}

/// Half of the threads wait at a barrier of the block, the other half at a barrier of their warps.
__global__ void split_kernel(float* y) {
  const int i = static_cast<int>(threadIdx.x);
  if (i % 2 == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  y[i] = 1;
}

__global__ void count_kernel(int* y) { atomicAdd(y, 1); }

__global__ void place_kernel(int64_t* y) {
  y[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] =
      blockIdx.x + blockIdx.y * 10 + blockIdx.z * 100;
}

__global__ void read_kernel(const float* x, int64_t i, float* y) { *y = x[i]; }

std::vector<float> counted() {
  std::vector<float> x(threads);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  return x;
}
Tensor there(const std::vector<float>& x) {
  return Tensor::from(x, {static_cast<int64_t>(x.size())}, device);
}

// Returns how many of four launches are right. Threads start from the first and from the last in
// turn.
template <bool barrier>
int right_of_four() {
  std::vector<float> expected = counted();
  std::reverse(expected.begin(), expected.end());
  const Tensor x = there(counted());
  int right = 0;
  for (int i = 0; i < 4; ++i) {
    Tensor y = there(std::vector<float>(threads, -1));
    launch("reverse", reverse_kernel<barrier>, dim3(1), threads, 0, x.view().as<float>(),
           y.mut().as<float>());
    right += y.to_vector<float>() == expected ? 1 : 0;
  }
  return right;
}

TEST(EmulatedDevice, FindsAMissingBarrier) {
  EXPECT_EQ(right_of_four<true>(), 4);
  EXPECT_LT(right_of_four<false>(), 4);
}

TEST(EmulatedDevice, LanesExchangeValues) {
  const Tensor x = there(counted());
  Tensor y = there(std::vector<float>(threads));
  launch("sum", sum_kernel, dim3(1), threads, 0, x.view().as<float>(), y.mut().as<float>(), 0);
  const std::vector<float> sums = y.to_vector<float>();
  EXPECT_EQ(sums[7], 31 * 16);
  EXPECT_EQ(sums[40], 31 * 16 + 32 * 32);
}

TEST(EmulatedDevice, NamesThreadsThatWaitForEver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Tensor x = there(counted());
  Tensor y = there(std::vector<float>(threads));
  EXPECT_DEATH(
      {
        launch("sum", sum_kernel, dim3(1), threads, 0, x.view().as<float>(), y.mut().as<float>(),
               1);
        wait("sum");
      },
      "threads wait for lanes of their warp that have ended");
  EXPECT_DEATH(
      {
        launch("split", split_kernel, dim3(1), threads, 0, y.mut().as<float>());
        wait("split");
      },
      "threads wait for lanes of their warp");
}

TEST(EmulatedDevice, RunsEveryBlockAndThreadOnce) {
  Tensor count = Tensor::from(std::vector<int32_t>{0}, {1}, device);
  launch("count", count_kernel, dim3(3, 5, 7), 65, 0, count.mut().as<int>());
  EXPECT_EQ(count.to_vector<int32_t>()[0], 3 * 5 * 7 * 65);
  Tensor places = Tensor::from(std::vector<int64_t>(8, -1), {8}, device);
  launch("place", place_kernel, dim3(2, 2, 2), 1, 0, places.mut().as<int64_t>());
  EXPECT_EQ(places.to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 10, 11, 100, 101, 110, 111}));
}

TEST(EmulatedDevice, KeepsTheLimitsOfLaunches) {
  Tensor count = Tensor::from(std::vector<int32_t>{0}, {1}, device);
  const auto error = [&](dim3 grid, int block, int64_t shared) {
    return test::message_of<CudaError>(
        [&] { launch("count", count_kernel, grid, block, shared, count.mut().as<int>()); });
  };
  launch("count", count_kernel, dim3(1, 65535), 1, 0, count.mut().as<int>());
  launch("count", count_kernel, dim3(1), 1024, 99 * 1024, count.mut().as<int>());
  EXPECT_NE(error(dim3(1, 65536), 1, 0).find("count: cudaErrorInvalid"), std::string::npos);
  EXPECT_NE(error(dim3(1), 1025, 0).find("count: cudaErrorInvalid"), std::string::npos);
  EXPECT_NE(error(dim3(1), 1, 99 * 1024 + 1).find("count: cudaErrorInvalid"), std::string::npos);
  wait("count");
}

TEST(EmulatedDevice, RunsWorkAsLateAsItMay) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault), cudaSuccess);
  float other = 1;
  std::memcpy(pinned, &other, 4);
  Tensor x = there({0, 0});
  float* const to = x.mut().as<float>();
  cudaMemcpyAsync(to, pinned, 4, cudaMemcpyHostToDevice, stream());
  cudaMemcpyAsync(to + 1, &other, 4, cudaMemcpyHostToDevice, stream());  // copied at once
  other = 2;
  std::memcpy(pinned, &other, 4);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{2, 1}));
}

// Lanes on the two sides of the branch reach different collectives.
__global__ void branch_kernel(float* y) {
  const int i = static_cast<int>(threadIdx.x);
  if (i % 2 == 0) {
    y[i] = __shfl_xor_sync(0xffffffffu, y[i], 2);
  } else {
    __syncwarp();
  }
}

TEST(EmulatedDevice, TellsCollectivesApart) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Tensor y = there(counted());
  EXPECT_DEATH(
      {
        launch("branch", branch_kernel, dim3(1), threads, 0, y.mut().as<float>());
        wait("branch");
      },
      "lanes of a warp are at different collectives");
}

TEST(EmulatedDevice, RecordsWhatMayBeRecorded) {
  Tensor count = Tensor::from(std::vector<int32_t>{0}, {1}, device);
  const auto submit = [&] { launch("count", count_kernel, dim3(1), 1, 0, count.mut().as<int>()); };
  wait("count");
  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_NE(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), cudaSuccess);
  submit();
  submit();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  cudaGraphExec_t runnable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&runnable, graph, 0), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(count.to_vector<int32_t>()[0], 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(runnable, stream()), cudaSuccess);
  cudaGraphExecDestroy(runnable);  // submitted work still runs
  EXPECT_EQ(count.to_vector<int32_t>()[0], 6);

  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), cudaSuccess);
  submit();
  EXPECT_EQ(cudaStreamSynchronize(stream()), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream(), &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
  cudaGetLastError();
  EXPECT_EQ(count.to_vector<int32_t>()[0], 6);
}

TEST(EmulatedDevice, GuardsItsBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Tensor x = there(counted());
  Tensor y = Tensor::empty({1}, DType::f32, device);
  const auto read = [&](int64_t i) {
    launch("read", read_kernel, dim3(1), 1, 0, x.view().as<float>(), i, y.mut().as<float>());
    wait("read");
  };
  EXPECT_NE(y.item(), y.item()) << "new memory holds NaN";
  read(threads - 1);
  EXPECT_EQ(y.item(), threads - 1);
  EXPECT_DEATH(read(threads), "");
}

}  // namespace
}  // namespace longspan::cuda
