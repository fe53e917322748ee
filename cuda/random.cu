#include "core/kernels/random.h"

#include "core/generator.h"
#include "core/memory.h"
#include "cuda/elementwise.cuh"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

/// Calls f(i, word i of the key) for words first .. first + n; a thread handles the four words of a
/// counter.
template <class F>
__global__ void __launch_bounds__(elementwise_threads)
    words_kernel(F f, DeviceScalar<uint64_t> scalar, int64_t first, int64_t n) {
  const uint64_t key = scalar;
  const int64_t begin = first / 4, end = (first + n + 3) / 4;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t c = begin + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; c < end; c += step) {
    const Philox4 w =
        philox(key, static_cast<uint32_t>(c), static_cast<uint32_t>(uint64_t(c) >> 32), 0, 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t i = 4 * c + k - first;
      if (i >= 0 && i < n) f(i, w.word[k]);
    }
  }
}

template <class F>
void for_words(const char* name, DeviceScalar<uint64_t> key, int64_t first, int64_t n, F f) {
  launch(name, words_kernel<F>, blocks_for(n > 0 ? n / 4 + 2 : 0, elementwise_threads),
         elementwise_threads, 0, f, key, first, n);
}

template <class T>
struct Drop {
  const T* x;
  T* y;
  uint64_t threshold;
  Accumulator<T> scale;
  __device__ void operator()(int64_t i, uint32_t word) const {
    using A = Accumulator<T>;
    y[i] = T(word >= threshold ? static_cast<A>(x[i]) * scale : A(0));
  }
};

void dropout(ConstView x, DeviceScalar<uint64_t> key, int64_t first, double p, View y) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto scale = static_cast<Accumulator<T>>(1.0 / (1.0 - p));
    for_words("dropout", key, first, y.numel(),
              Drop<T>{x.as<T>(), y.as<T>(), drop_threshold(p), scale});
  });
}

template <class T>
struct Uniform {
  T* y;
  float low, range;
  __device__ void operator()(int64_t i, uint32_t word) const {
    y[i] = T(rounded_add(low, rounded_multiply(to_uniform(word), range)));
  }
};

void uniform(DeviceScalar<uint64_t> key, double low, double high, View y) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_words("uniform", key, 0, y.numel(),
              Uniform<T>{y.as<T>(), static_cast<float>(low), static_cast<float>(high - low)});
  });
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    normal_kernel(DeviceScalar<uint64_t> scalar, float mean, float deviation, float low, float high,
                  T* y, int64_t n) {
  const uint64_t key = scalar;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t pair = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; 2 * pair < n; pair += step) {
    const auto c = static_cast<uint64_t>(pair) / 2;
    const Philox4 w = philox(key, static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0);
    const bool second = (pair & 1) != 0;
    float z[2];
    to_normal(second ? w.word[2] : w.word[0], second ? w.word[3] : w.word[1], z[0], z[1]);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int64_t i = 2 * pair + k;
      if (i >= n) break;
      float draw = z[k];
      for (uint32_t attempt = 1; !(draw >= low && draw <= high); ++attempt) {
        draw = philox_normal(key, i, attempt);
      }
      y[i] = T(rounded_add(mean, rounded_multiply(deviation, draw)));
    }
  }
}

void normal(DeviceScalar<uint64_t> key, double mean, double deviation, double low, double high,
            View y) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch("normal", normal_kernel<T>, blocks_for((y.numel() + 1) / 2, elementwise_threads),
           elementwise_threads, 0, key, static_cast<float>(mean), static_cast<float>(deviation),
           static_cast<float>(low), static_cast<float>(high), y.as<T>(), y.numel());
  });
}

template <class T>
struct Coin {
  T* y;
  uint64_t threshold;
  __device__ void operator()(int64_t i, uint32_t word) const {
    y[i] = word < threshold ? T(1) : T(0);
  }
};

void bernoulli(DeviceScalar<uint64_t> key, double p, View y) {
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_words("bernoulli", key, 0, y.numel(), Coin<T>{y.as<T>(), drop_threshold(p)});
  });
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    integers_kernel(DeviceScalar<uint64_t> scalar, int64_t low, uint64_t range, T* y, int64_t n) {
  const uint64_t key = scalar;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const uint64_t bits = uint64_t{philox_word(key, 2 * i + 1)} << 32 | philox_word(key, 2 * i);
    y[i] = static_cast<T>(low + static_cast<int64_t>(to_range(bits, range)));
  }
}

void randint(DeviceScalar<uint64_t> key, int64_t low, int64_t high, View y) {
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      launch("randint", integers_kernel<T>, blocks_for(y.numel(), elementwise_threads),
             elementwise_threads, 0, key, low, range, y.as<T>(), y.numel());
    }
  });
}

/// Orthonormalizes on the host, so that the bits are the same on every device. It runs once per
/// matrix, at model creation.
void orthonormalize(View x, double gain, View q) {
  const int64_t bytes = x.numel() * size_of(DType::f64);
  if (bytes == 0) return;
  const Scratch host_x(bytes), host_q(bytes);
  View on_host = x, result = q;
  on_host.data = host_x.data();
  result.data = host_q.data();
  on_host.device = result.device = Device{};
  copy_to_host(x.device, on_host.data, x.data, bytes);
  kernels::orthonormalize(Device{}, on_host, gain, result);
  copy_from_host(q.device, q.data, result.data, bytes);
  wait("orthonormalize");  // before the host memory is freed
}

}  // namespace

void register_random() {
  kernels::dropout.set(DeviceKind::cuda, dropout);
  kernels::uniform.set(DeviceKind::cuda, uniform);
  kernels::normal.set(DeviceKind::cuda, normal);
  kernels::bernoulli.set(DeviceKind::cuda, bernoulli);
  kernels::randint.set(DeviceKind::cuda, randint);
  kernels::orthonormalize.set(DeviceKind::cuda, orthonormalize);
}

}  // namespace longspan::cuda
