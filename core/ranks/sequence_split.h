#pragma once

#include <cstdint>
#include <string_view>

#include "core/ranks/communicator.h"

namespace longspan {

/// The processes that compute one sequence together: each has a run of its rows, and inside
/// attention all rows of a run of the heads \cite jacobs2023 (DeepSpeed-Ulysses). A model reads it
/// from Pass::split, and ops/exchange.h takes rows to heads and back.
class SequenceSplit {
 public:
  struct Range {
    int64_t first, count;
  };

  /// Keeps a reference. All calls of the group are made by one thread.
  explicit SequenceSplit(Communicator& group) : group_(group) {}

  Communicator& group() const { return group_; }
  int size() const { return group_.size(); }
  int index() const { return group_.rank(); }

  /// The rows of process `index` among all rows: runs of nearly equal length, in order, some
  /// of them empty if there are fewer rows than processes.
  Range rows(int64_t all, int index) const;
  Range rows(int64_t all) const { return rows(all, index()); }
  /// The heads of this process. Throws ValueError unless `all` is a multiple of the number of
  /// processes.
  ///   name  of the layer or the model, for the message
  Range heads(int64_t all, std::string_view name) const;

 private:
  Communicator& group_;
};

}  // namespace longspan
