#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/named_tensor.h"
#include "data/io/json.h"

namespace longspan {

/// What a folder given with --out contains.
enum class FolderContents : uint8_t {
  nothing,   ///< missing, or only what a command that was killed at its start leaves
  pictures,  ///< only pictures/ with pictures of ours, as draw leaves it
  run,  ///< a run of longspan train: config.toml with figures or checkpoints, or checkpoints alone
  others  ///< anything else
};
/// `other`, if not null, receives the name of a foreign entry. Throws IoError if the folder cannot
/// be read.
FolderContents contents_of(const std::string& folder, std::string* other = nullptr);

/// Throws ValueError if a folder contains foreign files: these are never replaced or removed.
void require_own_folder(const std::string& folder, std::string_view op);
/// Throws ValueError if the folder contains anything at all.
void require_empty_folder(const std::string& folder, std::string_view op);
/// The folder within a run in which an import keeps the files of its hub folder.
inline constexpr const char* kept_folder = "/hub";
/// Returns the hub folder that a run comes from, by import or --from, if it is still there; a hub
/// folder itself; empty for others.
std::string hub_origin_of(const std::string& run);
/// Checks the folder of a new run: throws ValueError if it holds a checkpoint or figures of another
/// run.
void require_no_run(const std::string& folder);

/// The validations of a run: the one of the lowest score, the first of several, and how many have
/// followed.
struct BestValidation {
  int64_t step = -1;    ///< -1: there is none with a finite score
  double score = 0;     ///< bits per unit
  int64_t since = 0;    ///< validations after it
  int64_t from = -1;    ///< validations up to this step were of other data, and do not count
  int64_t before = -1;  ///< the best step of those
  /// Takes the next validation; NaN is none better.
  void add(int64_t at, double found);
  /// What state.json has of it.
  Members values() const;
};
/// Reads the validations after step `from` in metrics.jsonl; `saved`: only of steps with a
/// checkpoint. Throws IoError if the file cannot be read.
BestValidation best_validation(const std::string& run, bool saved, int64_t from);
/// Goes on with the validations of a run: those in metrics.jsonl, and the best one that `kept`, the
/// member "validations" of state.json, knows of; null: none.
BestValidation continued_validations(const std::string& run, const Json* kept);

/// Returns the path of the checkpoint of step `step`, a decimal number or "best", the one with the
/// lowest validation score, or of the newest if `step` is null; "" if there is no checkpoint at
/// all. Throws ValueError that lists the existing steps if there is none of `step`.
std::string choose_checkpoint(const std::string& run, const std::string* step);

/// Calls read(path) with the path of a checkpoint. A run in training removes its older checkpoints
/// (`keep`): unless the user has `chosen` this one, one that disappears while it is read is
/// replaced by the newest, with which `read` is called again. Returns the path of the one that was
/// read. Throws what `read` throws.
std::string read_checkpoint(const std::string& run, std::string checkpoint, bool chosen,
                            const std::function<void(const std::string& path)>& read);

/// Throws IoError if one of these tensors, read from a checkpoint of the run, contains NaN or Inf;
/// names the newest earlier checkpoint without them.
///   weights  all parameters, which may be overwritten before it throws
void require_finite(const std::string& run, const std::string& checkpoint,
                    const TensorList& weights, const TensorList& optimizer = {});

/// Moves the content of a run beyond a step to RUN/beyond-step-N, which is a run folder too:
/// checkpoints are moved, figures are copied. Returns that folder, or "" if there is nothing
/// beyond. Throws IoError.
std::string set_aside(const std::string& run, int64_t step);

/// The checkpoints of a run in training. Older ones are removed only after the model has produced
/// finite values from the newest, so one from which the run can resume always exists.
class Checkpoints {
 public:
  /// `progress` returns what else a checkpoint holds: the optimizer's state and memories.
  /// `resumed`: the step of the checkpoint from which the run resumes, -1 if there is none.
  Checkpoints(std::string run, int64_t keep, TensorList weights,
              std::function<TensorList()> progress, int64_t resumed);

  /// Writes the checkpoint of a step, once; `overflowing` as in write_state(). Throws as
  /// write_state() does or, if the state is nonfinite, as diverged() does.
  void save(int64_t step, const Members& values, double rate, const TensorList& overflowing = {});
  /// Confirms that the state after `step` produced finite values. If that state is saved, only the
  /// newest checkpoints are kept, and those of the steps `spared`.
  void confirm(int64_t step, std::vector<int64_t> spared);
  /// Throws ValueError with what happened and the step from which to resume.
  [[noreturn]] void diverged(const std::string& what, double rate) const;

 private:
  int64_t last_good() const;

  std::string run_;
  int64_t keep_;
  TensorList weights_;
  std::function<TensorList()> progress_;
  int64_t saved_, confirmed_ = -1;
};

}  // namespace longspan
