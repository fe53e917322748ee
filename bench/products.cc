// Compares our matrix products with OpenBLAS's. All take turns in one process, on one thread; the
// best turn of each counts, in CPU time of that thread. The FMA peak is sampled before and after;
// if its samples differ by more than 5 %, the product is measured again, at most three times. The
// loading probe runs before and after every turn: turns in a slow phase of the machine are repeated
// and do not count (bench/phases.h).
// Prints one JSON line for each product:
//
//   own, openblas, whole   seconds of the best turn: our kernels; OpenBLAS in our tasks, as with
//                          set_matmul_library(); OpenBLAS in one call
//   *_median               over the turns that count
//   gain                   own / openblas: above 1 OpenBLAS is faster
//   share_own, ...         of the FMA peak; that of f64 is half of f32's
//   share_of_loading       fraction of the loading peak, for each
//   steady                 whether the samples of the FMA peak agree
//   phase                  "slow" if one of the three had no turn in a fast phase
//   loading_peak           the best probe; probe_lowest and probe_highest: those of this product
//   repeated_turns         beyond the rounds
//   instructions           of our kernels
//   openblas_core          OpenBLAS's kernels; openblas_coretype: OPENBLAS_CORETYPE, "" if unset
//
//   bench_products [--rounds N] [--seconds S] [--repeat-slow N] [--match TEXT]
//
// S is the minimum time of a turn. LONGSPAN_SIMD limits our kernels and the peak, OPENBLAS_CORETYPE
// limits OpenBLAS. Where our kernels use AVX-512 and OPENBLAS_CORETYPE is not set, the program sets
// it to SKYLAKEX for itself if those kernels of OpenBLAS are faster here than its own choice.

#include <cblas.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autograd/mode.h"
#include "bench/command_line.h"
#include "bench/harness.h"
#include "bench/phases.h"
#include "core/kernels/matmul.h"
#include "core/matmul_library.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan::bench {
namespace {

/// c [m, n] = a b over k; `layout` has N or T (transposed) for each operand. Calls take `matrices`
/// of b in turn, so that many of them come from main memory.
struct Product {
  const char* kind;
  int64_t m, n, k;
  std::string layout;
  DType dtype;
  int64_t matrices = 1;

  std::string name() const {
    return fmt::format("{} {}x{}x{} {} {}", kind, m, n, k, layout, name_of(dtype));
  }
  double flops() const { return 2.0 * static_cast<double>(m * n * k); }
};

std::vector<Product> products() {
  std::vector<Product> all;
  // dW = dy^T x: [out, in] over tokens.
  struct Size {
    int64_t m, n, k;
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto [m, n, k] :
         {Size{256, 256, 2048}, Size{256, 256, 8192}, Size{256, 256, 16384}, Size{256, 1024, 4096},
          Size{1024, 256, 4096}, Size{512, 512, 4096}, Size{512, 2048, 4096}, Size{768, 768, 2048},
          Size{768, 768, 8192}, Size{768, 3072, 4096}, Size{3072, 768, 4096},
          Size{1024, 1024, 2048}}) {
      if (dtype == DType::f64 && m * n * k > int64_t{1} << 31) continue;
      all.push_back({"weight gradient", m, n, k, "TN", dtype});
    }
  }
  for (const int64_t side : {8, 17, 32, 64, 128, 256, 512}) {
    for (const char* layout : {"NT", "NN", "TN"}) {
      all.push_back({"square", side, side, side, layout, DType::f64});
    }
  }
  for (const char* layout : {"NT", "NN"}) {
    all.push_back({"linear", 2048, 256, 256, layout, DType::f64});
    all.push_back({"linear", 2048, 1024, 256, layout, DType::f32});
    all.push_back({"linear", 2048, 256, 1024, layout, DType::f32});
  }
  for (const auto [m, n, k] : {Size{16384, 16, 64}, Size{8192, 32, 256}, Size{4096, 64, 64}}) {
    all.push_back({"tall", m, n, k, "NT", DType::f32});
    all.push_back({"tall", m, n, k, "NN", DType::f32});
    all.push_back({"wide", n, m, k, "NT", DType::f32});
    all.push_back({"wide", n, m, k, "NN", DType::f32});
    all.push_back({"long", n, n, m, "TN", DType::f32});
  }
  all.push_back({"few rows", 1, 1024, 4096, "NT", DType::f32});
  all.push_back({"few rows", 4, 4096, 1024, "NT", DType::f32});
  all.push_back({"few rows", 16, 4096, 1024, "NT", DType::f32});
  for (const int64_t rows : {8, 16, 17, 32, 64, 128, 256, 512}) {  // of 128 MiB of weights
    all.push_back({"layers", rows, 2048, 512, "NT", DType::f32, 32});
  }
  return all;
}

/// One implementation of a product.
struct Way {
  std::string name;
  std::function<void()> run;
};

template <class T, class F>
void call(const Product& p, const Tensor& a, const Tensor& b, int64_t index, Tensor& c, F gemm) {
  const auto size = [](int64_t x) { return static_cast<blasint>(x); };
  const bool at = p.layout[0] == 'T', bt = p.layout[1] == 'T';
  gemm(CblasRowMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans, size(p.m),
       size(p.n), size(p.k), T{1}, a.view().as<T>(), size(at ? p.m : p.k),
       b.view().as<T>() + index * p.n * p.k, size(bt ? p.k : p.n), T{0}, c.mut().as<T>(),
       size(p.n));
}

std::vector<Way> ways_of(const Product& p) {
  const bool at = p.layout[0] == 'T', bt = p.layout[1] == 'T';
  const Tensor a = cast(values(at ? Shape{p.k, p.m} : Shape{p.m, p.k}, 1), p.dtype);
  const Tensor b =
      cast(values(bt ? Shape{p.matrices, p.n, p.k} : Shape{p.matrices, p.k, p.n}, 2), p.dtype);
  const Tensor left = at ? transpose(a) : a;
  std::vector<Tensor> right;
  for (int64_t i = 0; i < p.matrices; ++i) {
    const Tensor one = select(b, 0, i);
    right.push_back(bt ? transpose(one) : one);
  }
  Tensor c = Tensor::empty({p.m, p.n}, p.dtype);
  const auto with = [=](MatmulLibrary library) {
    return [=, next = size_t{0}]() mutable {
      const WithMatmulLibrary setting(library);
      kernels::matmul(c.device(), left.view(), right[next++ % right.size()].view(), c.mut(),
                      kernels::no_epilogue);
    };
  };
  const auto whole = [=, next = int64_t{0}]() mutable {
    const int64_t index = next++ % p.matrices;
    if (p.dtype == DType::f64) {
      call<double>(p, a, b, index, c, cblas_dgemm);
    } else {
      call<float>(p, a, b, index, c, cblas_sgemm);
    }
  };
  return {{"own", with(MatmulLibrary::own)},
          {"openblas", with(MatmulLibrary::openblas)},
          {"whole", whole}};
}

/// Returns the mean seconds of `calls` calls.
double seconds_of(const std::function<void()>& run, int64_t calls) {
  const double start = thread_seconds();
  for (int64_t i = 0; i < calls; ++i) run();
  return (thread_seconds() - start) / static_cast<double>(calls);
}

struct Options {
  int64_t rounds = 9, repeat_slow = 7;
  double least = 0.02;  // seconds of a turn
  std::string match;
};

nlohmann::ordered_json measured(const Product& p, const Options& o) {
  std::vector<Way> ways = ways_of(p);
  int64_t calls = 1;
  for (const Way& way : ways) {
    way.run();
    const double once = std::max(seconds_of(way.run, 1), 1e-7);
    calls = std::max(calls, static_cast<int64_t>(std::ceil(o.least / once)));
  }
  std::vector<Contestant> contestants;
  for (const Way& way : ways) {
    contestants.push_back(
        {.turn = [&way, calls] { return std::vector{seconds_of(way.run, calls)}; }});
  }
  const double before = fma_peak(1);
  const Phases phases = take_turns(contestants, o.rounds, o.repeat_slow);
  const double after = fma_peak(1);
  const double part = p.dtype == DType::f64 ? 0.5 : 1.0;
  const double peak = part * std::max(before, after), loading = part * phases.loading_peak;
  nlohmann::ordered_json line = {{"name", p.name()}, {"rounds", o.rounds}, {"calls", calls}};
  nlohmann::ordered_json of_loading;
  for (size_t i = 0; i < ways.size(); ++i) {
    line[ways[i].name] = contestants[i].best[0];
    line[ways[i].name + "_median"] = contestants[i].median[0];
    of_loading[ways[i].name] = p.flops() / contestants[i].best[0] / loading;
  }
  line["gain"] = contestants[0].best[0] / contestants[1].best[0];
  for (size_t i = 0; i < ways.size(); ++i) {
    line["share_" + ways[i].name] = p.flops() / contestants[i].best[0] / peak;
  }
  line["share_of_loading"] = of_loading;
  line["peak_before"] = before;
  line["peak_after"] = after;
  line["steady"] = std::abs(before - after) <= 0.05 * std::max(before, after);
  line.update(fields_of(phases));
  return line;
}

/// Returns OpenBLAS's rate for a product of 512 x 512 x 512 as a share of the loading probe beside
/// it, so that rates of two processes can be compared: the best of several.
double openblas_share() {
  constexpr int64_t side = 512;
  const Product p = {"square", side, side, side, "NN", DType::f32};
  const std::vector<Way> ways = ways_of(p);
  const Way& whole = ways.back();
  whole.run();
  double most = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const double rate = p.flops() / seconds_of(whole.run, 2);
    most = std::max(most, rate / loading_probe(1));
  }
  return most;
}

/// What openblas_share() was with OpenBLAS's own choice, for the next start of this program.
constexpr const char* own_share = "LONGSPAN_BENCH_OPENBLAS_SHARE";

/// OpenBLAS reads OPENBLAS_CORETYPE when it is loaded, so the program starts itself again: first
/// with SKYLAKEX, and if that is no faster than OpenBLAS's own choice, once more without.
void choose_openblas(char** argv) {
  const char* share = std::getenv(own_share);
  const char* coretype = std::getenv("OPENBLAS_CORETYPE");
  if (share == nullptr) {
    if (coretype != nullptr || !instructions().starts_with("avx512")) return;
    setenv(own_share, fmt::format("{}", openblas_share()).c_str(), 1);
    setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 1);
  } else {
    if (coretype == nullptr || openblas_share() > std::atof(share)) return;
    unsetenv("OPENBLAS_CORETYPE");
  }
  execv("/proc/self/exe", argv);
  std::fprintf(stderr, "bench_products: cannot start itself again\n");
  std::exit(1);
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  using namespace longspan;
  using namespace longspan::bench;
  Options o;
  CommandLine command("bench_products", "Our matrix products beside OpenBLAS's, on one thread.");
  command.option("--rounds", o.rounds, "turns of each");
  command.option("--repeat-slow", o.repeat_slow, "most turns taken again in slow phases", 0);
  command.option("--seconds", o.least, "minimum time of a turn", 1e-4);
  command.option("--match", o.match, "only products with this text in their names");
  command.read(argc, argv);
  const NoGrad none;
  set_num_threads(1);
  openblas_set_num_threads(1);
  choose_openblas(argv);
  const char* coretype = std::getenv("OPENBLAS_CORETYPE");
  for (const Product& p : products()) {
    if (p.name().find(o.match) == std::string::npos) continue;
    nlohmann::ordered_json line = measured(p, o);
    for (int again = 0; again < 2 && line["steady"] == false; ++again) line = measured(p, o);
    line["instructions"] = instructions();
    line["openblas_core"] = openblas_get_corename();
    line["openblas_coretype"] = coretype == nullptr ? "" : coretype;
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}
