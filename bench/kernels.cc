// Runs every kernel family on Google Benchmark. Prints one JSON line per workload: its name,
// seconds per call (best and median of the repetitions, and their spread), and its share of this
// machine's FMA peak and loading peak or of its triad bandwidth, all measured at the start. Times
// are CPU time with one thread, and wall-clock time with several.
//
//   bench_kernels [--threads N] [Google Benchmark's options, e.g. --benchmark_filter=softmax]

#include "bench/kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness.h"
#include "core/parallel.h"

namespace longspan::bench {
namespace {

class JsonLines : public benchmark::BenchmarkReporter {
 public:
  explicit JsonLines(int threads)
      : threads_(threads),
        fma_(fma_peak(threads)),
        loading_(loading_peak(threads)),
        triad_(triad_bandwidth(threads)) {}

  bool ReportContext(const Context&) override {
    print({{"machine",
            {{"instructions", instructions()},
             {"threads", threads_},
             {"peak_instructions", peak_instructions()},
             {"fma_peak", fma_},
             {"loading_peak", loading_},
             {"triad_bandwidth", triad_}}}});
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    std::map<std::string, std::vector<const Run*>> repetitions;
    for (const Run& run : runs) {
      if (run.error_occurred) {
        print({{"name", run.run_name.str()}, {"error", run.error_message}});
      } else if (run.run_type == Run::RT_Iteration) {
        repetitions[run.run_name.function_name].push_back(&run);
      }
    }
    for (const auto& entry : repetitions) report(entry.first, entry.second);
  }

 private:
  void report(const std::string& name, const std::vector<const Run*>& runs) {
    std::vector<double> seconds;
    for (const Run* run : runs) {
      const double total = threads_ == 1 ? run->cpu_accumulated_time : run->real_accumulated_time;
      seconds.push_back(total / static_cast<double>(run->iterations));
    }
    std::sort(seconds.begin(), seconds.end());
    const double best = seconds.front(), median = seconds[seconds.size() / 2];
    nlohmann::ordered_json line = {
        {"name", name}, {"device", "cpu"},  {"threads", threads_},
        {"best", best}, {"median", median}, {"spread", (seconds.back() - best) / best}};
    const auto counter = [&runs](const char* key) -> double {
      const auto found = runs[0]->counters.find(key);
      return found == runs[0]->counters.end() ? 0.0 : static_cast<double>(found->second);
    };
    if (const double flops = counter("flops"); flops > 0) {
      line["flops_per_second"] = flops / best;
      line["share_of_fma_peak"] = flops / best / fma_;
      line["share_of_loading"] = flops / best / loading_;
    }
    if (const double executed = counter("executed"); executed > 0) {
      line["executed_share_of_fma_peak"] = executed / best / fma_;
    }
    if (const double bytes = counter("bytes"); bytes > 0) {
      line["bytes_per_second"] = bytes / best;
      line["share_of_triad"] = bytes / best / triad_;
    }
    line["workspace_bytes"] = counter("workspace");
    print(line);
  }

  static void print(const nlohmann::ordered_json& line) {
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  int threads_;
  double fma_, loading_, triad_;
};

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  int threads = 1;
  std::vector<std::string> words = {argv[0], "--benchmark_min_time=0.05",
                                    "--benchmark_repetitions=5"};
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--threads" && i + 1 < argc) {
      threads = std::max(1, std::atoi(argv[++i]));
    } else {
      words.emplace_back(argv[i]);
    }
  }
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 1;

  longspan::set_num_threads(threads);
  longspan::bench::add_gemm();
  longspan::bench::add_projections();
  longspan::bench::add_attention();
  longspan::bench::add_linear_attention();
  longspan::bench::add_elementwise();
  longspan::bench::add_rows();
  longspan::bench::add_optimizers();
  longspan::bench::add_steps();
  longspan::bench::add_sparse_layers();
  longspan::bench::JsonLines reporter(threads);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return 0;
}
