#include "app/commands.h"

#include <cstdio>

#include "app/run_folder.h"
#include "core/error.h"
#include "data/io/files.h"
#include "train/state.h"

namespace longspan {
namespace {

const Flag flags[] = {
    {"--model", "model.name", "model, or model:preset; see longspan models"},
    {"--task", "task",
     "the data set, or what a file is: bytes, words, dna, ...; see longspan data list"},
    {"--data", "data", "TASK=PATH: the file or folder, plain or packed with gzip"},
    {"--data-root", "data_root", "folder of all data sets; without it LONGSPAN_DATA"},
    {"--split", "split", "parts of the data that train, validate and test, in per cent: 90/5/5"},
    {"--tokenizer", "tokenizer", "of bytes: a folder or file; see docs/tokenizers.md"},
    {"--length", "length",
     "tokens of a segment, or of a source; a new model has positions for as many"},
    {"--target-length", "target_length", "encoder-decoders: most tokens to write"},
    {"--documents", "documents", "models of documents: train on so many; 0: all"},
    {"--gap-sentences", "gap_sentences",
     "encoder-decoders: leave out this share of the sentences and write them; 0: summaries"},
    {"--batch", "batch", "segments, or pairs, of a step"},
    {"--layers", "model.n_layer", "layers"},
    {"--steps", "steps", "steps to train"},
    {"--seconds", "seconds", "stop after so many seconds"},
    {"--seed", "seed", "seed of everything random"},
    {"--lr", "optimizer.lr", "peak of the learning rate"},
    {"--threads", "threads", "threads; does not change results"},
    {"--device", "device", "cpu or cuda"},
    {"--dtype", "model.precision", "what layers compute in: f32 or bf16"},
    {"--precision", "matmul_precision",
     "what products of f32 matrices round to: f32, tf32 or bf16; docs/options.md"},
    {"--products", "matmul_library",
     "what multiplies matrices of f32 and f64 on the CPU: own or openblas; docs/determinism.md"},
    {"--memory", "model.memory", "what is kept for the backward pass; docs/memory.md"},
    {"--chunks", "model.chunks", "pieces in which feed-forward layers run; docs/memory.md"},
    {"--from", "start.from",
     "train: start with the parameters of this run, whose model may be shorter; "
     "docs/longformer.md"},
    {"--save-every", "save_every", "steps between checkpoints; one is always written at the end"},
    {"--keep", "keep", "newest checkpoints that stay; 0: all"},
    {"--log-every", "log_every", "steps between rows of metrics.jsonl"},
    {"--eval-every", "eval_every", "steps between validations; 0: only at the end"},
};

const Flag beam_flags[] = {
    {"--beams", "search.beams", "texts that beam search follows at a time; 1: greedy"},
    {"--length-penalty", "search.length_penalty", "above 0 favours long texts"},
    {"--length-divisor", "search.divisor", "what the penalty is of: tokens, or wu2016"},
    {"--no-repeat-ngram", "search.no_repeat_ngram",
     "forbid repeated n-grams of this size; 0: allow all"},
    {"--min-tokens", "search.min_count", "no end before so many tokens"},
};

struct SearchOptions {
  BeamSearch search;
  void visit(auto& v) {
    v("beams", search.beams)("length_penalty", search.length_penalty)("divisor", search.divisor)(
        "no_repeat_ngram", search.no_repeat_ngram)("min_count", search.min_count);
  }
};

}  // namespace

std::span<const Flag> run_flags() { return flags; }

CommandLine read_own_flags(int argc, const char* const* argv, std::span<const Flag> own,
                           const std::string& about) {
  constexpr std::string_view product = "longspan";
  const std::string_view name = argv[0];  // "PROGRAM COMMAND"
  const std::string_view program = name.substr(0, name.rfind(' '));
  std::string text = about;
  if (text.starts_with(product)) text.replace(0, product.size(), program);
  CommandLine line = parse_command_line(argc, argv, own, text);
  if (!line.help.empty()) print_help(line.help);
  return line;
}

CommandLine read_command_line(int argc, const char* const* argv, std::span<const Flag> more,
                              const std::string& about, size_t words) {
  std::vector<Flag> all(more.begin(), more.end());
  all.insert(all.end(), std::begin(flags), std::end(flags));
  CommandLine line = read_own_flags(argc, argv, all, about);
  require(line.others.size() <= words, argv[0], "\"{}\" belongs to no option; see {} --help",
          line.others.size() > words ? line.others[words] : "", argv[0]);
  return line;
}

Settings taken(CommandLine& line, std::string_view prefix) {
  Settings mine, others;
  for (Setting& s : line.settings) {
    const bool match = s.key.starts_with(prefix);
    if (match) s.key = s.key.substr(prefix.size());
    (match ? mine : others).push_back(s);
  }
  line.settings = others;
  return mine;
}

std::span<const Flag> search_flags() { return beam_flags; }

BeamSearch taken_search(CommandLine& line) {
  SearchOptions o;
  set_fields(o, taken(line, "search."));
  constexpr double many = 1e6;
  const Range ranges[] = {{"beams", 0, many},
                          {"length_penalty", -many, many},
                          {"no_repeat_ngram", 0, many},
                          {"min_count", 0, many}};
  check_ranges(to_json(o), ranges);
  return o.search;
}

bool is_on(const CommandLine& line, std::string_view flag) {
  const std::string* value = line.value(flag);
  return value != nullptr && *value == "true";
}

Trained load_run(const CommandLine& line, Reads reads) {
  const std::string* out = line.value("--out");
  require(out != nullptr && !out->empty(), "longspan",
          "no run given; expected --out DIR, the folder of a trained run");
  require<IoError>(kind_of_path(*out, "longspan") == PathKind::folder, "longspan",
                   "there is no run folder {}", *out);
  const std::string* step = line.value("--step");
  std::string checkpoint = choose_checkpoint(*out, step);
  require<IoError>(!checkpoint.empty(), "longspan",
                   "{} holds no checkpoint; train into it first: longspan train --out {}", *out,
                   *out);
  Settings settings = read_toml(*out + "/config.toml");
  require_same_model(settings, line.settings, *out);
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  TrainingRun run(make_config(settings), *out);
  const TensorList state = named_state(*run.model);
  Json values;
  checkpoint = read_checkpoint(*out, checkpoint, step != nullptr, [&](const std::string& path) {
    values = read_parameters(path, state);
  });
  require_finite(*out, checkpoint, state);
  const Before before(values, *out, checkpoint);
  const std::vector<std::string> remarks =
      compare_inputs(before, run.config, reads, "--out", is_on(line, other_data_flag.name));
  for (const auto& lines : {remarks, compare_function(before, run.config, line.settings)}) {
    for (const std::string& text : lines) std::fprintf(stderr, "%s\n", text.c_str());
  }
  return {std::move(run), Position::read(values, checkpoint), remarks};
}

}  // namespace longspan
