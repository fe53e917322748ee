#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/named_tensor.h"
#include "data/io/json.h"

namespace longspan {

// Tensor files use the safetensors layout: eight bytes, little endian, with the length of the
// header; the header, JSON; then the contiguous data.

/// One tensor of a file: its data are bytes [begin, end) of the data section.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  int64_t begin = 0, end = 0;
};

/// Names and values of the `__metadata__` of a tensor file.
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// The header of a tensor file; entries in the order of their data.
struct TensorHeader {
  std::vector<TensorEntry> entries;
  Metadata metadata;
  int64_t data_begin = 0;  ///< offset of the data section in the file
};

/// Whether checksums must be present. Checksums that are present are always compared.
enum class Checksums { optional, required };

/// Checks and parses a header. Lengths are compared with `file_bytes` before anything of their size
/// is allocated.
///   header      the JSON, without the eight bytes before it
///   throws      IoError, beginning with `path`, unless the tensors of the header exactly fill a
///               file of that size: no overlap, no gap, no repeated name, exact end
TensorHeader parse_tensor_header(std::string_view header, int64_t file_bytes,
                                 const std::string& path,
                                 Checksums checksums = Checksums::optional);

/// Reads only the header of the file. Throws IoError.
TensorHeader read_tensor_header(const std::string& path, Checksums checksums = Checksums::optional);

/// Writes a tensor file completely or not at all. The bytes depend on the arguments only. The
/// metadata gets checksums (XXH3, 64 bits) of the header ("xxh3") and of every tensor
/// ("xxh3/NAME"). Throws IoError, ValueError on a repeated or empty name or a tensor that is
/// undefined or not contiguous.
void write_tensors(const std::string& path, const TensorList& tensors,
                   const Metadata& metadata = {});

/// Reads every tensor of a file, into Category `category`. Throws IoError.
TensorList read_tensors(const std::string& path, Device device = {},
                        Category category = Category::other);

/// Overwrites `into` with the tensors of those names. Throws IoError unless all names, shapes and
/// dtypes match; nothing is written before the whole file has been checked.
void load_tensors(const std::string& path, const TensorList& into,
                  Checksums checksums = Checksums::optional);

// Checkpoints: RUN/checkpoints/step-N with model.safetensors, optimizer.safetensors and state.json.

/// Returns the steps of the checkpoints in a run's folder, ascending; none if the folder does not
/// exist. Throws IoError if the folder is unreadable.
std::vector<int64_t> saved_steps(const std::string& run);
/// "RUN/checkpoints/step-N".
std::string checkpoint_path(const std::string& run, int64_t step);
/// Returns the path of the newest checkpoint, "" if there is none.
std::string newest_checkpoint(const std::string& run);

/// Thrown for a state that contains NaN or infinity.
class NonfiniteState : public ValueError {
  using ValueError::ValueError;
};

/// Returns the name of the first tensor that contains NaN or infinity, "" if all are finite.
/// Integers are always finite.
std::string first_nonfinite(const TensorList& tensors);
/// Returns XXH3 of the names and elements of all, as text.
std::string checksum_of(const TensorList& tensors);

/// Writes RUN/checkpoints/step-N in a temporary folder, which is synced and then renamed, so that a
/// checkpoint is complete or absent whenever the process dies. An existing checkpoint of this step
/// is replaced. Temporary folders of dead writers are removed first, and all checkpoints but the
/// newest `keep` afterwards (0 keeps all).
///   values       other values that the run resumes from; the member "step" is added
///   overflowing  more tensors for the optimizer's file, which may hold NaN or infinity: gradients
///                of a step whose update will be left out
///   returns      the path
///   throws       NonfiniteState that names a tensor that is not finite; IoError; existing
///                checkpoints are then unchanged
std::string write_state(const std::string& run, int64_t step, const TensorList& parameters,
                        const TensorList& optimizer, const Members& values = {}, int keep = 0,
                        const TensorList& overflowing = {});

/// Removes all checkpoints but the newest `keep` (0 keeps all) and those of the steps `spared`.
void prune_checkpoints(const std::string& run, int keep, const std::vector<int64_t>& spared = {});

/// Reads a whole checkpoint, and writes to the tensors only after everything has been checked.
/// Returns the values of state.json. Throws IoError that names the file and the problem.
Json read_state(const std::string& checkpoint, const TensorList& parameters,
                const TensorList& optimizer);
/// Reads only the parameters.
Json read_parameters(const std::string& checkpoint, const TensorList& parameters);
/// Reads some tensors of the optimizer's file, by their names.
void read_optimizer_tensors(const std::string& checkpoint, const TensorList& into);
/// Reads only state.json.
Json read_values(const std::string& checkpoint);
/// Reads only the header of the optimizer's file: what a checkpoint holds besides the parameters.
TensorHeader read_optimizer_header(const std::string& checkpoint);
/// Reads and checks everything. Throws IoError if something is wrong.
void verify_checkpoint(const std::string& checkpoint);

}  // namespace longspan
