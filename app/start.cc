#include "app/start.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "app/make_config.h"
#include "app/run_folder.h"
#include "core/error.h"
#include "core/kernels/copy.h"
#include "hub/folder.h"
#include "ops/copy.h"
#include "train/state.h"

namespace longspan {
namespace {

/// Returns the number of rows of a model's position table before the first position; 0 if it has no
/// such field.
int64_t position_offset(ModelSpec& model) {
  const Json fields = to_json(model);
  const Json* offset = fields.find("position_offset");
  return offset == nullptr ? 0 : offset->integer();
}

/// Throws ValueError unless a run has the tokens that the run in `from` was trained with: the ones
/// in its checkpoint or, if an earlier version wrote it, the ones of its tokenizer now.
void require_tokens_of(const RunConfig& config, const RunConfig& there, const Json& values,
                       const std::string& from) {
  const RunTokens here = tokens_of(config), others = [&] {
    if (const Json* data = values.find("data")) {
      return RunTokens{name_of_tokens(there), (*data)["tokens"].string()};
    }
    try {
      return tokens_of(there);
    } catch (const Error& e) {
      fail("--from", "what the tokens of {} are cannot be told: {}", from, e.what());
    }
  }();
  const auto text = [&](const RunTokens& kind) {
    return here.name == others.name && kind.name != kind.identity
               ? fmt::format("{} ({})", kind.name, kind.identity)
               : kind.name;
  };
  require(same_tokens(others.identity, here.identity), "--from",
          "the tokens of this run are {}, and those of {} are {}, whose numbers stand for other "
          "things; expected --tokenizer and data as there, or another run",
          text(here), from, text(others));
}

StartOptions options_of(const RunConfig::Start& start) {
  return {.beyond = start.positions, .new_heads = start.new_head};
}

/// Reads what a folder without a head has of the head for the run's task: the pooler, which a class
/// for classes goes on with. Removes the names of what was read from `drawn`.
void read_pooler(const TrainingRun& run, const HubFolder& folder, std::vector<std::string>& drawn) {
  const HubTask own = folder.head->task;
  const std::optional<HubTask> wanted = run.config.of_task->hub_task();
  if (!wanted || (own != HubTask::hidden && own != HubTask::masked_token)) return;
  const HubFolder headed = with_hub_head(folder, *wanted);
  if (headed.head->task != *wanted) return;
  const std::unique_ptr<LanguageModel> other = headed.spec()->build(Init{.blank = true});
  const HubTensors tensors = load_hub_weights(headed, *other);
  std::set<const void*> missing;
  const std::string_view prefix = headed.format().prefix;
  for (const NamedTensor& t : hub_named(headed, *other)) {
    std::string_view name = t.name;
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    if (std::find(tensors.drawn.begin(), tensors.drawn.end(), name) != tensors.drawn.end()) {
      missing.insert(t.tensor.view().data);
    }
  }
  const TensorList there = named_parameters(*other);
  for (const NamedTensor& p : named_parameters(*run.model)) {
    const auto at = std::find(drawn.begin(), drawn.end(), p.name);
    const auto from = std::find_if(there.begin(), there.end(),
                                   [&](const NamedTensor& t) { return t.name == p.name; });
    if (at == drawn.end() || from == there.end()) continue;
    if (missing.contains(from->tensor.view().data)) continue;
    if (from->tensor.shape() != p.tensor.shape()) continue;
    const Tensor value = cast(to_device(from->tensor.detach(), run.device), p.tensor.dtype());
    Tensor to = p.tensor;
    kernels::copy(run.device, contiguous(value).view(), to.mut());
    drawn.erase(at);
  }
}

/// Starts from the weights of a hub folder. Returns the names of new heads.
std::vector<std::string> start_from_hub(const TrainingRun& run) {
  const RunConfig::Start& start = run.config.start;
  const HubFolder folder = read_hub_folder(start.from);
  const std::unique_ptr<ModelSpec> spec = folder.spec();
  check_hub_shapes(folder, *spec);
  HubTensors tensors;
  const std::unique_ptr<LanguageModel> other =
      build_loaded(folder, *spec, Init{.device = run.device}, tensors);
  try {
    std::vector<std::string> drawn =
        start_from(*run.model, *other, position_offset(*run.config.model), options_of(start));
    read_pooler(run, folder, drawn);
    return drawn;
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    const bool classes = folder.head->task == HubTask::classes ||
                         folder.head->task == HubTask::tags || folder.head->task == HubTask::choice;
    fail("--from", "{} cannot start from {}, a {}: {}{}", run.config.model_name, start.from,
         folder.type->name, e.what(),
         classes && std::string_view(e.what()).find("classifier") != std::string::npos
             ? "; a folder with classes goes on with the same ones: expected its labels, or "
               "--new-head to draw that head"
             : "");
  }
}

}  // namespace

Started start_from_run(const TrainingRun& run) {
  const RunConfig::Start& start = run.config.start;
  if (is_hub_folder(start.from)) return {0, start_from_hub(run)};
  std::string checkpoint = newest_checkpoint(start.from);
  require<IoError>(!checkpoint.empty(), "--from",
                   "{} holds no checkpoint; expected the folder of a trained run", start.from);
  const RunConfig there = make_config(read_toml(start.from + "/config.toml"));
  Json values;
  const auto read_first = [&](const std::string& path) { values = read_values(path); };
  checkpoint = read_checkpoint(start.from, checkpoint, false, read_first);
  require_tokens_of(run.config, there, values, start.from);
  const int64_t offset = position_offset(*run.config.model);
  require(position_offset(*there.model) == offset, "model.position_offset",
          "got {}, and {} in {}; expected the same", offset, position_offset(*there.model),
          start.from);
  const std::unique_ptr<LanguageModel> other =
      there.model->build(Init{.device = run.device, .blank = true});
  const TensorList state = named_state(*other);
  checkpoint = read_checkpoint(start.from, checkpoint, false, [&](const std::string& path) {
    values = read_parameters(path, state);
  });
  if (there.optimizer.average > 0) read_average(checkpoint, named_parameters(*other));
  const std::string bad = first_nonfinite(state);
  require(bad.empty(), "--from", "{}: \"{}\" holds NaN or infinity; expected another run",
          checkpoint, bad);
  try {
    std::vector<std::string> heads = start_from(*run.model, *other, offset, options_of(start));
    return {values["step"].integer(), std::move(heads)};
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    fail("--from", "{} cannot start from {}, a run of {}: {}", run.config.model_name, start.from,
         there.model_name, e.what());
  }
}

}  // namespace longspan
