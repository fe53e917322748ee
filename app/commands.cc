#include "app/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "app/make_config.h"
#include "app/run_folder.h"
#include "app/tasks/table.h"
#include "core/error.h"
#include "data/io/files.h"
#include "hub/folder.h"
#include "hub/generation.h"
#include "models/reads_documents.h"
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
    {"--columns", "labelled.columns",
     "tables: columns with other names than the usual ones, as text=review,label=stars"},
    {"--tokenizer", "tokenizer", "of bytes: a folder or file; see docs/tokenizers.md"},
    {.name = "--length",
     .key = "length",
     .help = "tokens of a segment, or of a source; a new model has positions for as many",
     .also = "seq_len sequence_length max_length block_size context"},
    {"--target-length", "target_length", "encoder-decoders: most tokens to write"},
    {"--documents", "documents", "models of documents: train on so many; 0: all"},
    {"--gap-sentences", "gap_sentences",
     "encoder-decoders: leave out this share of the sentences and write them; 0: summaries"},
    {.name = "--batch",
     .key = "batch",
     .help = "segments, or pairs, of a step",
     .also = "batch_size"},
    {.name = "--layers",
     .key = "model.n_layer",
     .help = "layers",
     .also = "n_layer num_layers depth"},
    {.name = "--steps",
     .key = "steps",
     .help = "steps to train",
     .also = "epochs epoch iterations iters max_steps max_iters"},
    {"--seconds", "seconds", "stop after so many seconds"},
    {"--seed", "seed", "seed of everything random"},
    {.name = "--lr",
     .key = "optimizer.lr",
     .help = "peak of the learning rate",
     .also = "learning_rate"},
    {"--freeze", "optimizer.freeze", "do not train these parameters: NAME,NAME, * for anything"},
    {"--train", "optimizer.train", "train only these parameters: NAME,NAME, * for anything"},
    {"--rates", "optimizer.rates",
     "learning rates of parameters, as factors on --lr: NAME=FACTOR,..."},
    {"--average", "optimizer.average",
     "decay of a moving average of the weights, such as 0.999, which is validated and used later"},
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
    {"--new-head", "start.new_head",
     "with --from: draw the task's head, with the labels of the data, even if the run has one",
     true},
    {"--save-every", "save_every", "steps between checkpoints; one is always written at the end"},
    {"--keep", "keep", "newest checkpoints that stay; 0: all"},
    {"--keep-best", "keep_best",
     "save where the validation is the best so far, and keep it whatever --keep says", true},
    {"--best-by", "best_by",
     "what makes a validation the best: a figure of eval, such as accuracy; without it the loss"},
    {"--patience", "patience", "stop after so many validations without a better one; 0: never"},
    {"--log-every", "log_every", "steps between rows of metrics.jsonl"},
    {"--eval-every", "eval_every", "steps between validations; 0: only at the end"},
    {"--eval-tokens", "eval_tokens",
     "tokens that a validation reads, spread over the validation part; 0: all of it"},
    {"--tensorboard", "tensorboard", "also write figures to tensorboard/, for TensorBoard", true},
    {.name = "--pictures",
     .key = "pictures",
     .help = "formats of pictures: png, svg or pdf, or several, as png,pdf",
     .also = "format"},
};

const Flag beam_flags[] = {
    {"--beams", "search.beams", "texts that beam search follows at a time; 1: greedy"},
    {"--early-stopping", "search.early_stopping",
     "when a search ends: false, true or never; docs/options.md"},
    {"--length-penalty", "search.length_penalty", "above 0 favours long texts"},
    {"--length-divisor", "search.divisor", "what the penalty is of: tokens, or wu2016"},
    {"--no-repeat-ngram", "search.no_repeat_ngram",
     "forbid repeated n-grams of this size; 0: allow all"},
    {"--min-tokens", "search.min_count", "no end before so many tokens"},
    {"--repetition-penalty", "search.repetition_penalty",
     "above 1, tokens that are in the text already become less likely"},
};

struct SearchOptions {
  BeamSearch search;
  void visit(auto& v) {
    constexpr double many = 1e6;
    constexpr Range count = range::between(0, many);
    v("beams", search.beams, count)("divisor", search.divisor);
    v("length_penalty", search.length_penalty, range::between(-many, many));
    v("no_repeat_ngram", search.no_repeat_ngram, count)("min_count", search.min_count, count);
    v("early_stopping", search.early_stopping);
    v("repetition_penalty", search.repetition_penalty, range::between(1e-6, many));
  }
};

/// The commands that take the options of a run, as bits.
enum Command : unsigned {
  train = 1,
  eval = 2,
  generate = 4,
  draw = 8,
  plan = 16,  // memory
  study = 32,
  summarise = 64,
  imports = 128,
  exports = 256,
  predict = 512,
  answer = 1024,
  profile = 2048,
  of_runs = eval | generate | draw | summarise | predict | answer,
  all_commands = 4095
};
constexpr std::string_view command_names[] = {"train",  "eval",    "generate",  "draw",
                                              "memory", "study",   "summarise", "import",
                                              "export", "predict", "answer",    "profile"};

/// What decides which options are used, besides the command.
struct Case {
  unsigned command;
  const RunConfig& config;
  const Task& task;
  Objective objective;
  bool documents;  ///< the model reads documents of sentences
  bool labels;     ///< and labels them
  bool run;        ///< of a trained run, or about to be one
  bool given;      ///< the text is given: --document
  bool prompts;    ///< the texts are given: --prompts
  const Settings& settings;

  bool by(std::initializer_list<OptimizerName> names) const {
    return std::find(names.begin(), names.end(), config.optimizer.name) != names.end();
  }
  bool text() const { return task.is_one_text(); }
  bool decoder() const { return objective == Objective::next_token && !documents; }
  bool sequence() const { return objective == Objective::sequence; }
  bool writes() const {
    return sequence() && (command == generate || command == summarise || task.scores_texts());
  }
  /// Whether the files of the data set are read.
  bool reads_data() const {
    return !is_generated(task.set().kind) && (command != generate || (sequence() && !given)) && run;
  }
  /// Whether these files, or some of them, are cut into splits.
  bool has_split() const {
    const std::vector<DataFile>& files = task.set().files;
    const bool apart = !files.empty() && std::all_of(files.begin(), files.end(), [](const auto& f) {
      return f.part >= 0 || f.optional;
    });
    return reads_data() && task.cuts_files(apart);
  }
  bool typed(std::string_view key) const { return last_setting(settings, key) != nullptr; }
};

/// An option, or those whose keys begin with one that ends in "." or "_": the commands that use it,
/// and in which cases. What is not in the table is used everywhere.
struct Use {
  std::string_view key;
  unsigned commands;
  std::string_view of = {};  ///< the cases, for messages
  bool (*used)(const Case&) = nullptr;
};

constexpr Use uses[] = {
    {"task", train | eval | generate | draw | plan | study | profile | imports, "runs",
     [](const Case& c) { return c.run || c.command == plan || c.command == profile; }},
    {"data", train | eval | generate | draw, "data that are read from files",
     [](const Case& c) { return c.reads_data(); }},
    {"data_root", train | eval | generate | draw, "data that are read from files",
     [](const Case& c) { return c.reads_data(); }},
    {"split", train | eval | generate | draw, "data whose files are not the splits",
     [](const Case& c) { return c.has_split(); }},
    {"tokenizer", train | of_runs | imports, "texts and bases",
     [](const Case& c) { return c.run && c.task.takes_tokenizer(); }},
    {"labelled.", train | eval | predict | answer | draw | plan | study | profile,
     "texts with labels", [](const Case& c) { return c.task.set().kind == DataKind::tables; }},
    {"whole_words", train | eval, "encoders that write masked tokens of a text",
     [](const Case& c) { return c.objective == Objective::masked_token && c.text(); }},
    {"documents", train | eval | generate, "documents of the data",
     [](const Case& c) { return !c.given; }},
    {"target_length", train | eval | generate | summarise | plan | study | profile,
     "encoder-decoders",
     [](const Case& c) { return c.sequence() || (c.command & (plan | study | profile)) == 0; }},
    {"gap_sentences", train | eval},
    {"length", all_commands, "encoder-decoders",
     [](const Case& c) {
       return (c.command != generate && c.command != summarise) || c.sequence();
     }},
    {"batch", train | eval | generate | plan | study | profile, "prompts of a file",
     [](const Case& c) { return c.command != generate || c.prompts; }},
    {"accumulate", train | eval | plan | study | profile, "generated tasks",
     [](const Case& c) { return c.command != eval || is_generated(c.task.set().kind); }},
    {"steps", train | eval, "generated tasks",
     [](const Case& c) { return c.command == train || is_generated(c.task.set().kind); }},
    {"seconds", train},
    {"seed", train | eval | generate | draw | study | profile, "decoders, whose texts it draws",
     [](const Case& c) { return (c.command != generate || c.decoder()) && c.run; }},
    {"memory_limit", ~unsigned{plan | profile}, "runs", [](const Case& c) { return c.run; }},
    {"graph", train | plan | study},
    {"check_replays", train},
    {"anomaly", train},
    {"save_every", train},
    {"keep", train},
    {"keep_best", train},
    {"best_by", train},
    {"patience", train},
    {"log_every", train},
    {"eval_every", train},
    {"eval_tokens", train},
    {"tensorboard", train},
    {"pictures", train | eval | draw},
    {"profiles.", train | eval | draw, "runs", [](const Case& c) { return c.run; }},
    {"questions.", train | eval | draw, "runs", [](const Case& c) { return c.run; }},
    // Training with and without labels may share a command line.
    {"extracts.mask_", train | eval | draw, "models of documents without labels such as hibert",
     [](const Case& c) { return c.documents && (c.command == train || !c.labels); }},
    {"extracts.oracle", train | eval | draw, "models that label sentences such as hibert:labels",
     [](const Case& c) { return c.documents && (c.command == train || c.labels); }},
    {"extracts.take.", train | eval | summarise,
     "models that label sentences such as hibert:labels",
     [](const Case& c) { return c.documents && (c.command == train || c.labels); }},
    {"extracts.", train | eval | draw | summarise, "models of documents such as hibert",
     [](const Case& c) { return c.run && c.documents; }},
    {"model.dropout", train | plan | study | profile},
    {"model.dropout_", train | plan | study | profile},
    {"model.label_smoothing", train | plan | study | profile},
    {"model.smoothing", train | plan | study | profile},
    {"model.z_loss", train | plan | study | profile},
    {"model.loss_gradient", train | plan | study | profile},
    {"optimizer.lr", train},
    {"optimizer.beta1", train | plan | study | profile, "adam, adamw and lamb",
     [](const Case& c) {
       return c.by({OptimizerName::adam, OptimizerName::adamw, OptimizerName::lamb});
     }},
    {"optimizer.beta2", train | plan | study | profile, "adam, adamw and lamb",
     [](const Case& c) {
       return c.by({OptimizerName::adam, OptimizerName::adamw, OptimizerName::lamb});
     }},
    {"optimizer.eps", train | plan | study | profile, "adam, adamw and lamb",
     [](const Case& c) {
       return c.by({OptimizerName::adam, OptimizerName::adamw, OptimizerName::lamb});
     }},
    {"optimizer.momentum", train | plan | study | profile, "sgd",
     [](const Case& c) { return c.by({OptimizerName::sgd}); }},
    {"optimizer.step_clip", train | plan | study | profile, "adagrad",
     [](const Case& c) { return c.by({OptimizerName::adagrad}); }},
    {"optimizer.update_from", train | plan | study | profile, "an optimizer.update_period above 1",
     [](const Case& c) { return c.config.optimizer.update_period > 1; }},
    {"optimizer.", train | plan | study | profile},
    {"schedule.every", train, "the schedule step",
     [](const Case& c) { return c.config.schedule.name == ScheduleName::step; }},
    {"schedule.factor", train, "the schedule step",
     [](const Case& c) { return c.config.schedule.name == ScheduleName::step; }},
    {"schedule.floor", train, "the schedules cosine and linear",
     [](const Case& c) {
       return c.config.schedule.name == ScheduleName::cosine ||
              c.config.schedule.name == ScheduleName::linear;
     }},
    {"schedule.", train},
    {"ranks.", train},
    {"start.positions", train, "runs that start with --from",
     [](const Case& c) { return !c.config.start.from.empty(); }},
    {"start.new_head", train, "tables of texts with labels, and runs that start with --from",
     [](const Case& c) { return !c.config.start.from.empty() && c.config.of_task->hub_task(); }},
    {"start.", train | draw | plan | study | profile, "new models",
     [](const Case& c) { return c.command != draw || !c.run; }},
    {"search.beams", eval | generate | summarise, "decoders and for summaries of encoder-decoders",
     [](const Case& c) { return c.writes() || (c.command == generate && c.decoder()); }},
    {"search.no_repeat_ngram", eval | generate | summarise,
     "summaries of encoder-decoders, and for decoders with --beams or --temperature 0",
     [](const Case& c) {
       return c.writes() || (c.command == generate && c.decoder() &&
                             (c.typed("search.beams") || c.typed("sample.temperature")));
     }},
    {"search.repetition_penalty", eval | generate | summarise,
     "decoders and for summaries of encoder-decoders",
     [](const Case& c) { return c.writes() || (c.command == generate && c.decoder()); }},
    {"search.", eval | generate | summarise, "summaries of encoder-decoders",
     [](const Case& c) { return c.writes(); }},
    {"sample.index", generate, "encoder-decoders", [](const Case& c) { return c.sequence(); }},
    {"sample.", generate, "decoders", [](const Case& c) { return c.decoder(); }},
    {"--other-data", train | of_runs, "runs", [](const Case& c) { return c.run; }},
    {"--stride", eval, "decoders that read one long text",
     [](const Case& c) { return c.decoder() && c.text(); }},
    {"--document", generate | answer, "encoder-decoders",
     [](const Case& c) { return c.command != generate || c.sequence(); }},
    {"--scores", summarise, "models that label sentences such as hibert:labels",
     [](const Case& c) { return c.labels; }},
    {"--json", train | eval | generate | predict | answer | summarise | plan | profile,
     "prompts of a file", [](const Case& c) { return c.command != generate || c.prompts; }},
    {"--prompts", generate, "decoders", [](const Case& c) { return c.decoder(); }},
    {"--part", eval | generate, "encoder-decoders",
     [](const Case& c) { return c.command != generate || c.sequence(); }},
};

/// Returns the row of the table for a key; null if there is none.
const Use* use_of(std::string_view key) {
  for (const Use& use : uses) {
    const bool many = use.key.ends_with('.') || use.key.ends_with('_');
    if (use.key == key || (many && key.starts_with(use.key))) return &use;
  }
  return nullptr;
}

/// Adds the keys of the tasks whose data are read from files.
void add_keys_of_tasks(std::vector<Key>& keys) {
  for (const TaskEntry& entry : tasks()) {
    if (is_generated(entry.set.kind)) continue;
    const auto task = entry.make(entry.set);
    for (Key& key : keys_of(*task)) {
      const auto same = [&](const Key& other) { return other.name == key.name; };
      if (std::none_of(keys.begin(), keys.end(), same)) keys.push_back(std::move(key));
    }
  }
}

/// Returns the keys of a run that a command may use, but those of models and generated tasks.
std::vector<Key> keys_of_command(unsigned command) {
  RunConfig config = make_config({});
  std::vector<Key> keys = keys_of(config);
  const auto compare = [&](const std::string& model) {
    RunConfig other = make_config({{"model.name", model, "--help", true}});
    for (const Key& theirs : keys_of(other)) {
      const auto key = std::find_if(keys.begin(), keys.end(),
                                    [&](const Key& mine) { return mine.name == theirs.name; });
      if (key != keys.end() && key->value != theirs.value) key->value = "by model";
    }
  };
  for (const ModelEntry& model : models()) {
    for (const Preset& preset : model.presets) {
      const bool first = &preset == model.presets.data();
      compare(first ? std::string(model.name) : fmt::format("{}:{}", model.name, preset.name));
    }
  }
  add_keys_of_tasks(keys);
  std::erase_if(keys, [&](const Key& key) {
    const Use* const use = use_of(key.name);
    return key.name.starts_with("model.") || (use != nullptr && (use->commands & command) == 0);
  });
  return keys;
}

/// Returns the bit of a command by its name; 0 for others.
unsigned command_of(std::string_view name) {
  if (name == "sweep" || name == "study quality") return train;
  if (name == "summary") return plan;
  for (size_t i = 0; i < std::size(command_names); ++i) {
    if (name == command_names[i]) return 1u << i;
  }
  return 0;
}

/// Calls refuse(setting, row of the table) for each option that was typed and has one.
void each_typed(const CommandLine& line, auto&& look) {
  for (const Settings* all : {&line.settings, &line.values}) {
    for (const Setting& s : *all) {
      const Use* const use = s.text ? use_of(all == &line.values ? s.origin : s.key) : nullptr;
      if (use != nullptr) look(s, *use);
    }
  }
}

/// Returns an option as it was typed.
std::string name_of(const Setting& s) {
  return s.origin == "--set" ? fmt::format("--set {}", s.key) : s.origin;
}

/// Throws ValueError if an option was typed that a command uses in no case.
void require_used_by(std::string_view command, const CommandLine& line) {
  each_typed(line, [&](const Setting& s, const Use& use) {
    if ((use.commands & command_of(command)) != 0) return;
    std::string others;
    for (const std::string_view name : command_names) {
      if ((use.commands & command_of(name)) == 0) continue;
      others += fmt::format("{}{}", others.empty() ? "" : ", ", name);
    }
    fail(name_of(s), "{} has no use for it; it is for {}: leave it out", command, others);
  });
}

}  // namespace

void require_used(const CommandLine& line, RunConfig& config) {
  const unsigned command = command_of(line.command);
  const bool planned = command == plan || command == profile ||
                       (command == draw && last_setting(line.settings, "model.name") != nullptr);
  const auto model = config.model->build(Init{.meta = true});
  const auto* const documents = ask<ReadsDocuments>(std::as_const(*model));
  const Case c{.command = command,
               .config = config,
               .task = *config.of_task,
               .objective = model->objective(),
               .documents = documents != nullptr,
               .labels = documents != nullptr && documents->labels() > 0,
               .run = !planned,
               .given = line.value("--document") != nullptr,
               .prompts = line.value("--prompts") != nullptr,
               .settings = line.settings};
  each_typed(line, [&](const Setting& s, const Use& use) {
    require(use.used == nullptr || use.used(c), name_of(s),
            "is for {}, and {} on --task {} has no use for it: leave it out", use.of,
            config.model_name, config.task);
  });
}

RunConfig planned_config(const CommandLine& line) {
  const Settings settings = with_task_of_model(line.settings);
  RunConfig config = make_config(settings);
  const std::string& from = config.start.from;
  require<IoError>(from.empty() || kind_of_path(from, "--from") == PathKind::folder, "--from",
                   "there is no folder {}; expected a run, or a folder of the package transformers",
                   from);
  const std::string sizes = fill_sizes(config, settings);
  if (!sizes.empty()) std::fprintf(stderr, "%s\n", sizes.c_str());
  require_used(line, config);
  set_process(config);  // affects workspace
  say_positions(config);
  return config;
}

std::span<const Flag> run_flags() { return flags; }

CommandLine read_own_flags(int argc, const char* const* argv, std::span<const Flag> own,
                           const std::string& about, std::span<const Key> keys) {
  constexpr std::string_view product = "longspan";
  const std::string_view name = argv[0];  // "PROGRAM COMMAND"
  const std::string_view program = name.substr(0, name.rfind(' '));
  std::string text = about;
  if (text.starts_with(product)) text.replace(0, product.size(), program);
  CommandLine line = parse_command_line(argc, argv, own, text, keys);
  if (!line.help.empty()) print_help(line.help);
  return line;
}

std::string name_given(int argc, const char* const* argv, const std::string& command,
                       const std::string& about) {
  const CommandLine line = read_own_flags(argc, argv, {}, about);
  require(line.settings.empty(), command, "takes no settings, and got {}; leave it out",
          line.settings.empty() ? "" : line.settings[0].origin);
  require(line.others.size() <= 1, command, "\"{}\" belongs to nothing; give one name",
          line.others.size() > 1 ? line.others[1] : "");
  return line.others.empty() ? "" : line.others[0];
}

CommandLine read_command_line(int argc, const char* const* argv, std::span<const Flag> more,
                              const std::string& about, size_t words, std::string_view command) {
  std::vector<Flag> all(more.begin(), more.end());
  const std::string_view name = argv[0];
  if (command.empty()) command = name.substr(name.rfind(' ') + 1);
  for (Flag flag : flags) {
    const Use* const use = use_of(flag.key);
    flag.hidden = use != nullptr && (use->commands & command_of(command)) == 0;
    all.push_back(flag);
  }
  CommandLine line = read_own_flags(argc, argv, all, about, keys_of_command(command_of(command)));
  require(line.others.size() <= words, argv[0], "\"{}\" belongs to no option; see {} --help",
          line.others.size() > words ? line.others[words] : "", argv[0]);
  line.command = command;
  require_used_by(command, line);
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

namespace {

/// Returns how the hub folder of a run, if it has one, says that its model writes.
BeamSearch usual_search(const std::string& out) {
  BeamSearch search;
  const std::string folder = hub_origin_of(out);
  if (folder.empty()) return search;
  const HubGeneration g = read_hub_generation(read_hub_folder(folder));
  require<NotImplemented>(
      g.others.empty(), "generate",
      "{} asks for what is not done here: {}; take that out of its generation_config.json", folder,
      fmt::join(g.others, ", "));
  search.beams = g.beams.value_or(search.beams);
  search.no_repeat_ngram = g.no_repeat_ngram.value_or(search.no_repeat_ngram);
  search.length_penalty = g.length_penalty.value_or(search.length_penalty);
  search.repetition_penalty = g.repetition_penalty.value_or(search.repetition_penalty);
  search.early_stopping = g.early_stopping.value_or(search.early_stopping);
  // There the decoder's first input counts as a token.
  search.min_count = std::max<int64_t>(g.shortest.value_or(0) - 1, 0);
  return search;
}

}  // namespace

BeamSearch taken_search(CommandLine& line) {
  SearchOptions o;
  if (const std::string* out = line.value("--out")) o.search = usual_search(*out);
  set_fields(o, taken(line, "search."));
  check_ranges(o);
  return o.search;
}

bool is_on(const CommandLine& line, std::string_view flag) {
  const std::string* value = line.value(flag);
  return value != nullptr && *value == "true";
}

std::string read_input(const std::string& path, const char* op) {
  std::string text;
  if (path == "-") {
    char some[4096];
    while (const size_t n = std::fread(some, 1, sizeof some, stdin)) text.append(some, n);
  } else {
    text = read_file(path, op);
  }
  return std::string(without_byte_order_mark(text));
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return text;
}

void print_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

OnRow& on_row() {
  static OnRow function;
  return function;
}

void say(const std::string& text) { std::fprintf(stderr, "%s\n", Error(text).what()); }

namespace {

/// load_run() of a hub folder.
Trained load_hub(const std::string& out, const CommandLine& line, const CommandLine& typed) {
  require(line.value("--step") == nullptr, "--step", "{} is a hub folder, which has no steps", out);
  Settings settings = settings_of_hub(out);
  require_same_model(settings, line.settings, out);
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  RunConfig config = make_config(settings);
  require_used(typed, config);
  TrainingRun run(std::move(config), out, true);
  const HubFolder folder = read_hub_folder(out);
  check_hub_shapes(folder, *run.config.model);
  HubTensors tensors;
  const Init init{run.generator().fork("init"), run.device};
  run.model.reset();
  run.model = build_loaded(folder, *run.config.model, init, tensors);
  for (const std::string& name : tensors.drawn) {
    say(fmt::format("{} lacks {}: it is drawn", out, name));
  }
  return {.run = std::move(run), .at = {}, .remarks = {}, .is_hub = true};
}

}  // namespace

Trained load_run(const CommandLine& line, const CommandLine& typed, Reads reads) {
  const std::string* out = line.value("--out");
  require(out != nullptr && !out->empty(), "longspan",
          "no run given; expected --out DIR, the folder of a trained run");
  require<IoError>(kind_of_path(*out, "longspan") == PathKind::folder, "longspan",
                   "there is no run folder {}", *out);
  const std::string* step = line.value("--step");
  if (is_hub_folder(*out)) return load_hub(*out, line, typed);
  std::string checkpoint = choose_checkpoint(*out, step);
  require<IoError>(!checkpoint.empty(), "longspan",
                   "{} holds no checkpoint; train into it first: longspan train --out {}", *out,
                   *out);
  Settings settings = settings_of_run(*out);
  require_same_model(settings, line.settings, *out);
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  RunConfig config = make_config(settings);
  require_used(typed, config);
  TrainingRun run(std::move(config), *out, true);
  const TensorList state = named_state(*run.model);
  Json values;
  checkpoint = read_checkpoint(*out, checkpoint, step != nullptr, [&](const std::string& path) {
    values = read_parameters(path, state);
  });
  require_finite(*out, checkpoint, state);
  if (run.config.optimizer.average > 0) read_average(checkpoint, named_parameters(*run.model));
  const Before before(values, *out, checkpoint);
  std::vector<std::string> remarks =
      compare_inputs(before, run.config, reads, "--out", is_on(line, other_data_flag.name));
  // Paths in them may hold bytes that no terminal and no file of JSON should get.
  for (std::string& text : remarks) text = Error(text).what();
  for (const std::string& text : remarks) std::fprintf(stderr, "%s\n", text.c_str());
  for (const std::string& text : compare_function(before, run.config, line.settings)) say(text);
  return {.run = std::move(run), .at = Position::read(values, checkpoint), .remarks = remarks};
}

}  // namespace longspan
