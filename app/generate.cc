#include "models/generate.h"

#include <cstdio>
#include <optional>
#include <vector>

#include "app/commands.h"
#include "core/error.h"
#include "data/io/files.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

struct Options {
  std::string prompt = "\n";
  int64_t tokens = 500, top_k = 0, index = -1;
  double temperature = 1, top_p = 1;
  uint64_t sample_seed = 1;
  void visit(auto& v) {
    constexpr double many = 1e15;
    constexpr Range count = range::between(0, many);
    v("prompt", prompt)("tokens", tokens, count)("temperature", temperature, count);
    v("top_k", top_k, count)("top_p", top_p, range::fraction);
    v("index", index, range::between(-1, many))("sample_seed", sample_seed);
  }
};

/// Returns the tokenizer of a run's text. Throws NotImplemented if there is none, or if it is built
/// from the data.
std::unique_ptr<const Tokenizer> text_tokenizer(const RunConfig& config) {
  std::unique_ptr<const Tokenizer> found = config.of_task->text_tokenizer(config.tokenizer);
  require<NotImplemented>(found != nullptr, "generate",
                          "the task {} has {}s; expected bytes or characters", config.task,
                          unit_of(config.of_task->set().kind));
  return found;
}

std::string read_stream(std::FILE* stream) {
  std::string text;
  char some[4096];
  while (const size_t n = std::fread(some, 1, sizeof some, stream)) text.append(some, n);
  return text;
}

/// Reads the text of a file without its line breaks; "-" is standard input.
std::string read_text(const std::string& path) {
  std::string text = path == "-" ? read_stream(stdin) : read_file(path, "--document");
  text.erase(0, text.size() - without_byte_order_mark(text).size());
  for (char& c : text) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return text;
}

/// Prints a summary, one sentence per line, of a file or of an article of the data.
void write_summary(const Trained& trained, const CommandLine& line, const Options& o,
                   const BeamSearch& search) {
  const std::string* file = line.value("--document");
  const std::string* part = line.value("--part");
  require(file != nullptr || o.index >= 0, "generate",
          "{} writes after reading: expected --document FILE, or --index N of --part",
          trained.run.config.model_name);
  require(file == nullptr || (o.index < 0 && part == nullptr), "--document",
          "is one way to name a text, and {} another; expected one of them",
          part != nullptr ? "--part" : "--index");
  const Task& task = *trained.run.config.of_task;
  task.require_search(search, trained.run);
  const std::unique_ptr<TaskData> task_data = task.open(trained.run, file == nullptr);
  const std::string text = file != nullptr
                               ? read_text(*file)
                               : task_data->input(part != nullptr ? *part : "valid", o.index);
  for (const std::string& sentence : task_data->answer(text, search)) std::puts(sentence.c_str());
}

/// Prints a prompt and its continuation: sampled, or the best that a beam search finds.
void go_on(const Trained& trained, const Options& o, const std::optional<BeamSearch>& search) {
  const LanguageModel& model = *trained.run.model;
  const std::unique_ptr<const Tokenizer> tokenizer = text_tokenizer(trained.run.config);
  const std::vector<int32_t> prompt = tokenizer->encode(o.prompt);
  const auto print = [&](int32_t id) {
    // Ids beyond the tokenizer's vocabulary have no text.
    const std::string text =
        id < tokenizer->vocabulary() ? tokenizer->decode({&id, 1}) : std::string();
    std::fwrite(text.data(), 1, text.size(), stdout);
  };
  for (const int32_t id : prompt) print(id);
  const Tensor start =
      Tensor::from(prompt, {1, static_cast<int64_t>(prompt.size())}, trained.run.device);
  if (search && o.tokens > 0) {
    const Beams found = beam_search(model, start, need<ContinuesSequences>(model).start_decoding(1),
                                    o.tokens, *search);
    for (const int64_t id : contiguous(select(found.tokens, 1, 0)).to_vector<int64_t>()) {
      print(static_cast<int32_t>(id));
    }
    std::fputc('\n', stdout);
    return;
  }
  const Sampling sampling{o.temperature, o.top_k, o.top_p};
  generate(model, start, o.tokens, sampling, Generator{o.sample_seed}.fork("sample"),
           [&](const Tensor& token) {
             print(static_cast<int32_t>(token.item()));
             std::fflush(stdout);
           });
  std::fputc('\n', stdout);
}

/// Returns how a decoder searches: with --beams, or where --temperature 0 and --no-repeat-ngram ask
/// for the most likely text without repeats. Nothing if it samples. Throws ValueError if the
/// options ask for both.
std::optional<BeamSearch> search_of_decoder(const CommandLine& typed, const Options& o,
                                            BeamSearch search) {
  const auto given = [&](std::string_view key) { return last_setting(typed.settings, key); };
  const bool beams = given("search.beams") != nullptr;
  if (!beams && given("search.no_repeat_ngram") == nullptr) {
    for (const char* const key : {"sample.top_k", "sample.top_p", "seed"}) {
      const Setting* const s = given(key);
      require(s == nullptr || !s->text || o.temperature > 0, s != nullptr ? s->origin : "",
              "with --temperature 0 nothing is drawn: leave it out");
    }
    return std::nullopt;
  }
  for (const char* const key : {"sample.top_k", "sample.top_p", "seed", "sample.temperature"}) {
    const Setting* const s = given(key);
    const bool greedy = s != nullptr && s->key == "sample.temperature" && o.temperature == 0;
    require(s == nullptr || !s->text || greedy, s != nullptr ? s->origin : "",
            "a search for the most likely text draws nothing; leave it out, or {}",
            beams ? "--beams" : "--no-repeat-ngram");
  }
  if (!beams) search.beams = 1;
  require(search.beams >= 1, "--beams", "got {}; expected 1 or more", search.beams);
  search.end = -1;
  return search;
}

}  // namespace

int generate_command(int argc, const char* const* argv) {
  std::vector<Flag> own = {
      {"--out", "", "the run folder"},
      {"--step", "", "step of the checkpoint, or best; without it the newest"},
      {"--prompt", "sample.prompt", "text to go on from"},
      {"--tokens", "sample.tokens", "tokens to draw"},
      {"--temperature", "sample.temperature", "0: always the most likely token"},
      {"--top-k", "sample.top_k", "draw from the k most likely tokens; 0: all"},
      {"--top-p", "sample.top_p", "draw from the fewest tokens that reach p"},
      {"--document", "", "encoder-decoders: a text to summarise, - for standard input"},
      {"--index", "sample.index", "encoder-decoders: summarise this article of --part, from 0"},
      {"--part", "", "train, valid or test; without it valid"},
      other_data_flag};
  own.insert(own.end(), search_flags().begin(), search_flags().end());
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan generate --out DIR: text from a trained model, token by token; from an "
      "encoder-decoder the summary of a document.");
  const CommandLine typed = line;
  // Sampling settings are not part of the run; --seed sets the seed of sampling.
  Settings sample_settings = taken(line, "sample.");
  for (const Setting& s : line.settings) {
    if (s.key == "seed") sample_settings.push_back({"sample_seed", s.value, s.origin, s.text});
  }
  std::erase_if(line.settings, [](const Setting& s) { return s.key == "seed"; });
  const BeamSearch search = taken_search(line);
  Options o;
  set_fields(o, sample_settings);
  check_ranges(o);
  require(!o.prompt.empty(), "prompt", "got nothing; expected at least one byte");
  require(o.top_p > 0, "--top-p", "got {}; expected above 0, to 1", o.top_p);
  if (const std::string* part = line.value("--part")) part_index(*part);

  // An article of the data is one of what the run was trained with; given text needs the tokens.
  const Trained trained = load_run(line, typed, o.index >= 0 ? Reads::data : Reads::tokens);
  const Objective objective = trained.run.model->objective();
  require<NotImplemented>(objective != Objective::masked_token, "generate",
                          "{} predicts hidden bytes, not the next one; expected a decoder",
                          trained.run.config.model_name);
  if (objective == Objective::sequence) {
    require(search.beams >= 1, "--beams", "got {}; expected 1 or more", search.beams);
    write_summary(trained, line, o, search);
  } else {
    go_on(trained, o, search_of_decoder(typed, o, search));
  }
  return 0;
}

}  // namespace longspan
