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

// Tensor files: the safetensors layout. Eight bytes, little endian, with the length of the header;
// the header, JSON; the data, in one piece.

/// One tensor of a file: its data are bytes [begin, end) of the data part.
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
  int64_t data_begin = 0;  ///< where the data part begins in the file
};

/// Whether checksums must be there. Where they are, they are always compared.
enum class Checksums { optional, required };

/// Checks and reads a header. Lengths are compared with `file_bytes` before anything of their size
/// is allocated.
///   header      the JSON, without the eight bytes before it
///   throws      IoError, beginning with `path`, on anything but a header of which the tensors fill
///               a file of that size: no overlap, no hole, no repeated name, exact end
TensorHeader parse_tensor_header(std::string_view header, int64_t file_bytes,
                                 const std::string& path,
                                 Checksums checksums = Checksums::optional);

/// The header of the file. Reads no data. Throws IoError.
TensorHeader read_tensor_header(const std::string& path, Checksums checksums = Checksums::optional);

/// Writes a tensor file: complete, or not at all. The bytes depend on the arguments alone. The
/// metadata gets checksums (XXH3, 64 bits) of the header ("xxh3") and of every tensor
/// ("xxh3/NAME"). Throws IoError, ValueError on a repeated or empty name or a tensor that is
/// undefined or not contiguous.
void write_tensors(const std::string& path, const TensorList& tensors,
                   const Metadata& metadata = {});

/// Every tensor of a file, in Category `category`. Throws IoError.
TensorList read_tensors(const std::string& path, Device device = {},
                        Category category = Category::other);

/// Overwrites `into` with the tensors of those names. Throws IoError unless names, shapes and
/// dtypes are the same, all of them; nothing is written before the whole file has been checked.
void load_tensors(const std::string& path, const TensorList& into,
                  Checksums checksums = Checksums::optional);

// Checkpoints: RUN/checkpoints/step-N with model.safetensors, optimizer.safetensors and state.json.

/// Steps of the checkpoints in a run's folder, ascending. Throws IoError where the folder is
/// unreadable; a folder that is not there has none.
std::vector<int64_t> saved_steps(const std::string& run);
/// "RUN/checkpoints/step-N".
std::string checkpoint_path(const std::string& run, int64_t step);
/// The path of the newest checkpoint, "" where there is none.
std::string newest_checkpoint(const std::string& run);

/// A state that holds NaN or infinity.
class NonfiniteState : public ValueError {
  using ValueError::ValueError;
};

/// The name of the first tensor that holds NaN or infinity, "" where all are finite. Integers are.
std::string first_nonfinite(const TensorList& tensors);

/// Writes RUN/checkpoints/step-N: in a temporary folder, synced, then renamed, so that a checkpoint
/// is complete or not there, whenever the process dies. One of the same step is replaced.
/// Temporary folders of dead writers are removed first, and checkpoints but the newest `keep`
/// afterwards (0 keeps all).
///   values   what else the run continues from; the member "step" is added
///   returns  the path
///   throws   NonfiniteState that names a tensor which is not finite; IoError; whatever was there
///            before is as it was
std::string write_state(const std::string& run, int64_t step, const TensorList& parameters,
                        const TensorList& optimizer, const Members& values = {}, int keep = 0);

/// Removes all checkpoints but the newest `keep` (0 keeps all), and that of step `spare`.
void prune_checkpoints(const std::string& run, int keep, int64_t spare = -1);

/// Reads all of a checkpoint, and writes to the tensors only after everything has been checked.
/// Returns the values of state.json. Throws IoError that names the file and what is wrong.
Json read_state(const std::string& checkpoint, const TensorList& parameters,
                const TensorList& optimizer);
/// The parameters alone.
Json read_parameters(const std::string& checkpoint, const TensorList& parameters);
/// state.json alone.
Json read_values(const std::string& checkpoint);
/// Reads everything and keeps nothing. Throws IoError where something is wrong.
void verify_checkpoint(const std::string& checkpoint);

}  // namespace longspan
