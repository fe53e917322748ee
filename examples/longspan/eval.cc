#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "core/error.h"
#include "examples/longspan/commands.h"
#include "models/evaluate.h"
#include "train/files.h"

namespace longspan {
namespace {

constexpr const char* scores[] = {"valid_bpb", "test_bpb", "train_part_bpb"};

/// The key of summary.json for a part: train_bpb is the mean over the last steps.
const char* key_of(const std::string& part) {
  return part == "valid" ? scores[0] : part == "test" ? scores[1] : scores[2];
}

void set(Members& figures, const std::string& key, const Json& value) {
  for (JsonMember& m : figures) {
    if (m.name == key) {
      m.value = value;
      return;
    }
  }
  figures.push_back({key, value});
}

/// Takes over what summary.json says of the scores of the same step.
void keep_scores(const std::string& out, Members& figures) {
  Json before;
  try {
    before = parse_json(read_file(out + "/summary.json", "eval"));
  } catch (const Error&) {  // a run that was killed has none
    return;
  }
  const Json now(figures);
  const Json* step = before.find("steps");
  if (step == nullptr || !(*step == now["steps"])) return;
  for (const char* key : scores) {
    if (const Json* score = before.find(key)) set(figures, key, *score);
  }
}

struct Windows {
  int64_t stride = 0;
  void visit(auto& v) { v("stride", stride); }
};

/// Bits per byte where every byte but the first ones has a context of at least length - stride.
double sliding_bits(const TrainingRun& run, const Part& part, int64_t stride) {
  require<NotImplemented>(run.model->objective() == Objective::next_token, "--stride",
                          "{} predicts hidden bytes; expected a decoder", run.config.model_name);
  std::vector<int32_t> text{part.before};
  for (int64_t i = 0; i < part.size(); ++i) text.push_back(part[i]);
  const int64_t together = std::max<int64_t>(1, 4096 / run.config.length);
  const Score score = score_sliding(*run.model, Tensor::from(text, {part.size() + 1}),
                                    run.config.length, stride, together);
  const double symbols = static_cast<double>(part.symbols > 0 ? part.symbols : part.size());
  return score.bits() * static_cast<double>(score.count) / symbols;
}

}  // namespace

int eval_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the run folder"},
                      {"--step", "", "step of the checkpoint; without it the newest"},
                      {"--part", "", "train, valid or test; without it valid"},
                      {"--stride", "", "score again in windows that move by so many bytes"}};
  const CommandLine line = read_command_line(
      argc, argv, own,
      "longspan eval --out DIR: scores a checkpoint on every byte of a part of the data once.");
  Trained trained = load_run(line);
  const TrainingRun& run = trained.run;
  const Corpus corpus = run.corpus();
  const std::string part = line.value("--part") != nullptr ? *line.value("--part") : "valid";
  const Part& tokens = corpus.part(part);
  require(tokens.size() > 0, "--part", "the {} part of {} is empty with --split {}", part,
          tokens.path,
          run.config.split.empty() ? find_data_set(corpus.id).split
                                   : std::string_view(run.config.split));

  const auto start = std::chrono::steady_clock::now();
  const double bits = bits_per_byte(run, corpus, tokens);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fprintf(stderr, "step %lld, %s part of %s: %.4f bits per %s (%lld %s in %.2f s)\n",
               static_cast<long long>(trained.at.step), part.c_str(), tokens.path.c_str(), bits,
               corpus.unit.c_str(), static_cast<long long>(tokens.size()),
               tokens.symbols < 0 ? (corpus.unit + "s").c_str() : "tokens", seconds);

  if (const std::string* stride = line.value("--stride")) {
    Windows windows;
    set_fields(windows, {{"stride", Json(*stride), "--stride", true}});
    std::fprintf(stderr, "in windows of %lld that move by %lld: %.4f bits per %s\n",
                 static_cast<long long>(run.config.length), static_cast<long long>(windows.stride),
                 sliding_bits(run, tokens, windows.stride), corpus.unit.c_str());
  }

  Members figures = summary(run, trained.at, std::nan(""));
  keep_scores(run.out, figures);
  set(figures, key_of(part), bits);
  finish(run.out, figures);
  return 0;
}

}  // namespace longspan
