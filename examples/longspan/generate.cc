#include "models/generate.h"

#include <cstdio>

#include "core/error.h"
#include "examples/longspan/commands.h"

namespace longspan {
namespace {

struct Options {
  std::string prompt = "\n";
  int64_t tokens = 500, top_k = 0;
  double temperature = 1, top_p = 1;
  uint64_t sample_seed = 1;
  void visit(auto& v) {
    v("prompt", prompt)("tokens", tokens)("temperature", temperature)("top_k", top_k)(
        "top_p", top_p)("sample_seed", sample_seed);
  }
};

/// What turns the tokens of a run into text. Throws NotImplemented where it has none, or where it
/// is made from the data.
std::unique_ptr<const Tokenizer> text_tokenizer(const RunConfig& config) {
  const DataKind kind = find_data_set(config.task).kind;
  require<NotImplemented>(kind == DataKind::bytes || kind == DataKind::chars, "generate",
                          "the task {} has {}s; expected bytes or characters", config.task,
                          unit_of(kind));
  if (kind == DataKind::chars) return char27_tokenizer();
  return open_tokenizer(config.tokenizer.empty() ? "bytes" : config.tokenizer);
}

}  // namespace

int generate_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the run folder"},
                      {"--step", "", "step of the checkpoint; without it the newest"},
                      {"--prompt", "sample.prompt", "text to go on from"},
                      {"--tokens", "sample.tokens", "bytes to draw"},
                      {"--temperature", "sample.temperature", "0: always the most likely byte"},
                      {"--top-k", "sample.top_k", "draw from the k most likely bytes; 0: all"},
                      {"--top-p", "sample.top_p", "draw from the fewest bytes that reach p"}};
  CommandLine line = read_command_line(
      argc, argv, own, "longspan generate --out DIR: text from a trained model, byte by byte.");
  // What concerns the sample is no part of the run; its seed is the sample's too.
  Settings sample_settings, run_settings;
  for (Setting& s : line.settings) {
    if (s.key.starts_with("sample.")) {
      s.key = s.key.substr(7);
      sample_settings.push_back(s);
    } else if (s.key == "seed") {
      s.key = "sample_seed";
      sample_settings.push_back(s);
    } else {
      run_settings.push_back(s);
    }
  }
  line.settings = run_settings;
  Options o;
  set_fields(o, sample_settings);
  constexpr double many = 1e15;
  const Range ranges[] = {
      {"tokens", 0, many}, {"temperature", 0, many}, {"top_k", 0, many}, {"top_p", 0, 1}};
  check_ranges(to_json(o), ranges);
  require(!o.prompt.empty(), "prompt", "got nothing; expected at least one byte");

  const Trained trained = load_run(line);
  const LanguageModel& model = *trained.run.model;
  require<NotImplemented>(model.objective() == Objective::next_token, "generate",
                          "{} predicts hidden bytes, not the next one; expected a decoder",
                          trained.run.config.model_name);
  const std::unique_ptr<const Tokenizer> tokenizer = text_tokenizer(trained.run.config);
  const std::vector<int32_t> prompt = tokenizer->encode(o.prompt);
  const auto print = [&](int32_t id) {
    // What the model has beyond the data's tokens stands for no text.
    const std::string text =
        id < tokenizer->vocabulary() ? tokenizer->decode({&id, 1}) : std::string();
    std::fwrite(text.data(), 1, text.size(), stdout);
  };
  for (const int32_t id : prompt) print(id);
  const Tensor start =
      Tensor::from(prompt, {1, static_cast<int64_t>(prompt.size())}, trained.run.device);
  const Sampling sampling{o.temperature, o.top_k, o.top_p};
  generate(model, start, o.tokens, sampling, Generator{o.sample_seed}.fork("sample"),
           [&](const Tensor& token) {
             print(static_cast<int32_t>(token.item()));
             std::fflush(stdout);
           });
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace longspan
