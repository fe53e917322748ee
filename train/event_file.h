#pragma once

#include <cstdint>
#include <string>

#include "data/io/files.h"
#include "data/io/json.h"

namespace longspan {

/// Figures over steps in a file that TensorBoard reads: TFRecords of Event messages, whose figures
/// are scalars named "train/NAME", or "valid/NAME" for "valid_NAME".
class EventFile {
 public:
  /// Opens a new file in the folder, which is made if need be; other files there stay.
  ///   step  the step that the run goes on from: what other files say of later steps is then
  ///         ignored; -1: it begins
  /// Throws IoError.
  EventFile(const std::string& folder, int64_t step);

  /// Appends the figures that are numbers, in one write. Throws IoError.
  void add(int64_t step, const Members& figures);

 private:
  void write(const std::string& event);

  std::string path_;
  File file_;
};

/// Returns a record as TensorFlow writes it: its length and itself, each followed by its masked
/// CRC-32C.
std::string tf_record(const std::string& data);

}  // namespace longspan
