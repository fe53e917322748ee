#include "models/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <vector>

#include "app/commands.h"
#include "app/run_folder.h"
#include "core/error.h"
#include "data/corpus.h"
#include "data/io/files.h"
#include "data/labelled/table.h"
#include "data/tokenizers/hub_processor.h"
#include "hub/generation.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

struct GenerateCommandOptions {
  std::string prompt = "\n";
  int64_t tokens = 500, top_k = 0, index = -1;
  double temperature = 1, top_p = 1, repetition_penalty = 1;
  uint64_t sample_seed = 1;
  void visit(auto& v) {
    constexpr double many = 1e15;
    constexpr Range count = range::between(0, many);
    v("prompt", prompt)("tokens", tokens, count)("temperature", temperature, count);
    v("top_k", top_k, count)("top_p", top_p, range::fraction);
    v("index", index, range::between(-1, many))("sample_seed", sample_seed);
  }
};

/// Returns the tokenizer of a run's text; that of words is built from the data. Throws
/// NotImplemented if there is none.
std::shared_ptr<const Tokenizer> text_tokenizer(const RunConfig& config) {
  std::shared_ptr<const Tokenizer> found = config.of_task->text_tokenizer(config.tokenizer);
  if (found == nullptr && config.of_task->set().kind == DataKind::words) {
    found =
        open_corpus(config.task, data_place(config), {config.split, config.tokenizer}).tokenizer;
  }
  require<NotImplemented>(found != nullptr, "generate",
                          "the task {} has {}s; expected bytes, characters or words", config.task,
                          unit_of(config.of_task->set().kind));
  return found;
}

/// Prints a summary, one sentence per line, of a file or of an article of the data.
void write_summary(const Trained& trained, const CommandLine& line, const GenerateCommandOptions& o,
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
                               ? one_line(read_input(*file, "--document"))
                               : task_data->input(part != nullptr ? *part : "valid", o.index);
  for (const std::string& sentence : task_data->answer(text, search)) print_text(sentence);
}

/// The token that ends a text: the task's, or that of the folder that the run comes from; -1: none.
int64_t end_of(const TrainingRun& run) {
  const int64_t end = run.config.of_task->end_token(run.config);
  const std::string folder = end < 0 ? hub_origin_of(run.out) : "";
  if (folder.empty()) return end;
  const std::optional<int64_t> found = read_hub_generation(read_hub_folder(folder)).end;
  return found && *found < run.model->vocab() ? *found : -1;
}

/// The text of tokens; ids beyond the tokenizer's vocabulary, and the one that ends a text, have
/// none.
std::string text_of(std::span<const int64_t> ids, const Tokenizer& tokenizer, int64_t end) {
  std::vector<int32_t> known;
  for (const int64_t id : ids) {
    if (id < tokenizer.vocabulary() && id != end) known.push_back(static_cast<int32_t>(id));
  }
  return tokenizer.decode(known);
}

Sampling sampling_of(const GenerateCommandOptions& o) {
  return {o.temperature, o.top_k, o.top_p, o.repetition_penalty};
}

/// Prints a prompt and its continuation: after each token, the text by which the decoded text has
/// grown.
void draw_one(const LanguageModel& model, const Tokenizer& tokenizer,
              const GenerateCommandOptions& o, const std::vector<int32_t>& prompt, int64_t end) {
  std::vector<int64_t> all(prompt.begin(), prompt.end());
  std::string shown;
  const auto show = [&] {
    const std::string text = text_of(all, tokenizer, end);
    if (!text.starts_with(shown)) return;  // what follows may change it again
    std::fwrite(text.data() + shown.size(), 1, text.size() - shown.size(), stdout);
    std::fflush(stdout);
    shown = text;
  };
  show();
  generate(model, {&prompt, 1}, o.tokens, sampling_of(o), Generator{o.sample_seed}.fork("sample"),
           end, [&](size_t, int64_t token) {
             all.push_back(token);
             show();
           });
  std::fputc('\n', stdout);
}

/// Returns what follows each of some prompts: sampled, or the best that a beam search finds.
std::vector<std::vector<int64_t>> continued(const TrainingRun& run,
                                            const std::vector<std::vector<int32_t>>& prompts,
                                            const GenerateCommandOptions& o,
                                            const std::optional<BeamSearch>& search, int64_t end) {
  if (!search || o.tokens == 0) {
    return generate(*run.model, prompts, o.tokens, sampling_of(o),
                    Generator{o.sample_seed}.fork("sample"), end);
  }
  const Beams found = beam_search(*run.model, prompts, o.tokens, *search);
  const std::vector<int64_t> ids = contiguous(select(found.tokens, 1, 0)).to_vector<int64_t>();
  const std::vector<int64_t> lengths = contiguous(select(found.lengths, 1, 0)).to_vector<int64_t>();
  std::vector<std::vector<int64_t>> all;
  for (size_t b = 0; b < prompts.size(); ++b) {
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(b) * o.tokens;
    all.emplace_back(begin, begin + lengths[b]);
  }
  return all;
}

/// Prints a prompt and its continuation.
void go_on(const Trained& trained, const GenerateCommandOptions& o,
           std::optional<BeamSearch> search) {
  const TrainingRun& run = trained.run;
  const std::shared_ptr<const Tokenizer> tokenizer = text_tokenizer(run.config);
  const std::vector<int32_t> prompt = tokenizer->encode(o.prompt);
  const int64_t end = end_of(run);
  if (!search || o.tokens == 0) {
    draw_one(*run.model, *tokenizer, o, prompt, end);
    return;
  }
  search->end = end;
  const std::vector<int64_t> ids = continued(run, {prompt}, o, search, end)[0];
  const std::vector<int64_t> before(prompt.begin(), prompt.end());
  const std::string text = text_of(before, *tokenizer, -1) + text_of(ids, *tokenizer, end);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

/// Returns the prompts of a file: of .jsonl the member "prompt" of each row, else its lines.
std::vector<std::string> prompts_of(const std::string& path) {
  if (path != "-" && table_format(path)) {
    std::vector<std::string> all;
    TableReader reader(path);
    TableRow row;
    while (reader.next(row)) {
      const Json* prompt = row.find("prompt");
      require<IoError>(prompt != nullptr && prompt->is_string(), "--prompts",
                       "{} has no text in its column prompt", row.place());
      all.push_back(prompt->string());
    }
    return all;
  }
  return lines_of(read_input(path, "--prompts"));
}

/// Prints what follows each prompt of a file. Prompts of similar length are read together, and each
/// is continued as it would be alone.
void go_on_from_file(const Trained& trained, const std::string& path,
                     const GenerateCommandOptions& o, std::optional<BeamSearch> search, bool json) {
  const TrainingRun& run = trained.run;
  const std::shared_ptr<const Tokenizer> tokenizer = text_tokenizer(run.config);
  const int64_t end = end_of(run);
  if (search) search->end = end;
  const std::vector<std::string> texts = prompts_of(path);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < texts.size(); ++i) {
    prompts.push_back(tokenizer->encode(texts[i]));
    require(!prompts.back().empty(), "--prompts", "prompt {} of {} has no token; expected one",
            i + 1, path);
  }
  for (size_t i = 0; search && i < prompts.size(); ++i) {
    const int64_t room = run.model->max_length() - o.tokens + 1;
    require(std::ssize(prompts[i]) <= room, "--prompts",
            "prompt {} of {} has {} tokens, and a search for {} more has room for {}; expected a "
            "shorter one, or fewer --tokens",
            i + 1, path, prompts[i].size(), o.tokens, room);
  }
  std::vector<size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return prompts[a].size() < prompts[b].size(); });
  std::vector<std::string> written(prompts.size());
  const auto together = static_cast<size_t>(std::max<int64_t>(run.config.batch, 1));
  for (size_t begin = 0; begin < order.size(); begin += together) {
    std::vector<std::vector<int32_t>> some;
    const size_t count = std::min(together, order.size() - begin);
    for (size_t i = 0; i < count; ++i) some.push_back(prompts[order[begin + i]]);
    const std::vector<std::vector<int64_t>> found = continued(run, some, o, search, end);
    for (size_t i = 0; i < count; ++i) {
      written[order[begin + i]] = text_of(found[i], *tokenizer, end);
    }
    if (order.size() > together) {
      std::fprintf(stderr, "%zu of %zu prompts\n", begin + count, order.size());
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    if (json) {
      std::puts(to_string(Json(Members{{"prompt", with_replacement_characters(texts[i])},
                                       {"text", with_replacement_characters(written[i])}}))
                    .c_str());
    } else {
      if (texts.size() > 1) std::puts(fmt::format("== {} ==", i + 1).c_str());
      print_text(texts[i] + written[i]);
    }
  }
}

/// Returns how a decoder searches: with --beams, or where --temperature 0 and --no-repeat-ngram ask
/// for the most likely text without repeats. Nothing if it samples. Throws ValueError if the
/// options ask for both.
std::optional<BeamSearch> search_of_decoder(const CommandLine& typed,
                                            const GenerateCommandOptions& o, BeamSearch search) {
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
      {"--prompts", "",
       "decoders: a file with a prompt on each line, or .jsonl; - for standard input"},
      {"--json", "", "--prompts: a line of JSON for each prompt", true},
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
  GenerateCommandOptions o;
  o.repetition_penalty = search.repetition_penalty;
  set_fields(o, sample_settings);
  check_ranges(o);
  require(!o.prompt.empty(), "prompt", "got nothing; expected at least one byte");
  const bool usual_length = last_setting(typed.settings, "sample.tokens") == nullptr;
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
    const std::optional<BeamSearch> how = search_of_decoder(typed, o, search);
    // A search stays within what the model reads at once.
    if (how && usual_length) o.tokens = std::min(o.tokens, trained.run.model->max_length() / 2);
    const std::string* const prompts = line.value("--prompts");
    const Setting* const prompt = last_setting(typed.settings, "sample.prompt");
    require(prompts == nullptr || prompt == nullptr, "--prompts",
            "is one way to name a text, and --prompt another; expected one of them");
    if (prompts != nullptr) {
      go_on_from_file(trained, *prompts, o, how, is_on(line, "--json"));
    } else {
      go_on(trained, o, how);
    }
  }
  return 0;
}

}  // namespace longspan
