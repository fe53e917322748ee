#include "app/start.h"

#include <optional>
#include <utility>

#include "app/make_config.h"
#include "app/run_folder.h"
#include "core/error.h"
#include "hub/folder.h"
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

/// Throws ValueError unless the tokens of a run are those that the run in `from` was trained with:
/// what its checkpoint says or, if that is of an earlier version, what its tokenizer is now.
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

/// Does the same with a hub folder. Returns the names of new heads.
std::vector<std::string> start_from_hub(const TrainingRun& run) {
  const RunConfig::Start& start = run.config.start;
  const HubFolder folder = read_hub_folder(start.from);
  const std::unique_ptr<ModelSpec> spec = folder.spec();
  check_hub_shapes(folder, *spec);
  const std::unique_ptr<LanguageModel> other = spec->build(Init{.device = run.device});
  load_hub_weights(folder, *other);
  try {
    return start_from(*run.model, *other, position_offset(*run.config.model), start.positions);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    fail("--from", "{} cannot start from {}, a {}: {}", run.config.model_name, start.from,
         folder.type->name, e.what());
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
  const std::unique_ptr<LanguageModel> other = there.model->build(Init{.device = run.device});
  const TensorList state = named_state(*other);
  checkpoint = read_checkpoint(start.from, checkpoint, false, [&](const std::string& path) {
    values = read_parameters(path, state);
  });
  if (there.optimizer.average > 0) read_average(checkpoint, named_parameters(*other));
  const std::string bad = first_nonfinite(state);
  require(bad.empty(), "--from", "{}: \"{}\" holds NaN or infinity; expected another run",
          checkpoint, bad);
  try {
    std::vector<std::string> heads = start_from(*run.model, *other, offset, start.positions);
    return {values["step"].integer(), std::move(heads)};
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    fail("--from", "{} cannot start from {}, a run of {}: {}", run.config.model_name, start.from,
         there.model_name, e.what());
  }
}

}  // namespace longspan
