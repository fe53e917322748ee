#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/named_tensor.h"
#include "data/io/json.h"
#include "train/optimizer.h"

namespace longspan {

/// What lies in a folder that is given with --out.
enum class FolderContents : uint8_t {
  nothing,  ///< it is not there, or holds no more than a command that was ended at its start leaves
  pictures,  ///< pictures/ with ours alone, as draw leaves it
  run,       ///< a run of longspan train: its config.toml beside figures or checkpoints, or these
  others     ///< something else
};
/// `other`, where given, becomes the name of something that is not ours. Throws IoError where the
/// folder cannot be read.
FolderContents contents_of(const std::string& folder, std::string* other = nullptr);

/// Throws ValueError where a folder holds something that is no run of ours: nothing of others is
/// replaced or removed.
void require_own_folder(const std::string& folder, std::string_view op);
/// The same where it holds anything at all.
void require_empty_folder(const std::string& folder, std::string_view op);
/// For a run that starts: throws ValueError where the folder holds another's figures or
/// checkpoints.
void require_no_run(const std::string& folder);

/// The path of the checkpoint of step `step`, in digits, or of the newest where that is null; ""
/// where there is none at all. Throws ValueError that names the steps that there are.
std::string choose_checkpoint(const std::string& run, const std::string* step);

/// Throws IoError where one of these tensors, read from a checkpoint of the run, holds NaN or
/// infinity; names the newest checkpoint before it that does not.
///   weights  all parameters, which may be overwritten where it throws
void require_finite(const std::string& run, const std::string& checkpoint,
                    const TensorList& weights, const TensorList& optimizer = {});

/// Moves what a run holds beyond a step out of its way, into RUN/beyond-step-N, itself the folder
/// of a run: checkpoints move, figures are copied. Returns the folder, "" where nothing is beyond.
/// Throws IoError.
std::string set_aside(const std::string& run, int64_t step);

/// The checkpoints of a run that is being trained. No older one goes before the model has given
/// finite numbers from the newest, so that one from which the run can go on is always there.
class Checkpoints {
 public:
  /// `resumed`: the step of the checkpoint that the run goes on from, -1 where there is none.
  Checkpoints(std::string run, int64_t keep, TensorList weights, Optimizer& optimizer,
              int64_t resumed);

  /// Writes that of a step, once. Throws as write_state() and, where the state is not finite, as
  /// diverged().
  void save(int64_t step, const Members& values, double rate);
  /// The state after `step` has given finite numbers: if it is saved, only the newest ones stay.
  void confirm(int64_t step);
  /// Throws ValueError: what happened, and the step to go on from.
  [[noreturn]] void diverged(const std::string& what, double rate) const;

 private:
  int64_t last_good() const;

  std::string run_;
  int64_t keep_;
  TensorList weights_;
  Optimizer& optimizer_;
  int64_t saved_, confirmed_ = -1;
};

}  // namespace longspan
