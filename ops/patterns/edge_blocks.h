#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ops/patterns/edges.h"

namespace longspan::detail {

/// Cuts the rows of a layout into blocks, and the blocks into parts: what EdgeLayoutBuilder does
/// with its rows. See kernels::EdgeTablesOf for the tables.
class EdgeBlocks {
 public:
  /// Row r has runs row_begin[r] to row_begin[r + 1] - 1; labels are the lists.
  EdgeBlocks(const std::vector<EdgeRun>& runs, const std::vector<int64_t>& row_begin,
             const std::vector<int32_t>& labels)
      : runs_(runs), row_begin_(row_begin), labels_(labels) {}

  /// Appends rows from .. to - 1, which no other rows are computed together with. `starts` are all
  /// rows at which a block should begin, in ascending order.
  void append(int64_t from, int64_t to, std::span<const int64_t> starts);

  /// Makes the tables, and counts.
  void fill(EdgeLayout& to);

 private:
  static constexpr size_t kFields = kernels::kEdgeBlockFields;

  struct Block {
    std::array<int32_t, kFields> fields{};
    int64_t reach = 0;  // the end of its first runs
    int64_t pairs = 0;
    int64_t strip = -1;  // the number of the strip that it is
  };
  /// Rows of a block that have this run.
  struct Group {
    EdgeRun run;
    int32_t rows;
  };
  /// A row of a strip.
  struct StripRow {
    int64_t row;
    int32_t keys;       // bits
    bool begins, ends;  // a piece of the row
    int64_t piece;      // its number, -1 if the row has one
  };
  using Strip = std::vector<StripRow>;

  /// A set of integers, given as ranges. Its members are numbered in ascending order.
  class NumberedSet {
   public:
    void clear();
    void add(int64_t from, int64_t end) { ranges_.push_back({from, end, 0}); }
    /// Joins the ranges that were added. Call it before what follows.
    void join();
    int64_t size() const { return size_; }
    int64_t number_of(int64_t x) const;
    std::vector<int64_t> members() const;

   private:
    struct Range {
      int64_t from, end, number;  // of the first member
    };
    std::vector<Range> ranges_;
    int64_t size_ = 0;
  };

  class Slots;

  std::span<const EdgeRun> runs_of(int64_t row) const;
  int64_t pairs_of(int64_t from, int64_t to) const;
  bool has_one_run(int64_t row) const;
  void append_range(int64_t from, int64_t to);
  void append_long_rows();
  Block block_of(int64_t from, int64_t rows);
  bool share(int64_t from, int64_t to);
  void add_shared(Block& block);

  const std::vector<EdgeRun>& runs_;
  const std::vector<int64_t>& row_begin_;
  const std::vector<int32_t>& labels_;
  NumberedSet key_set_, label_set_;
  std::vector<Group> shared_;
  std::vector<Block> long_blocks_;  // of a group, whose rows may become rows of strips
  std::map<std::vector<int32_t>, int64_t> label_lists_;
  std::vector<Block> blocks_;
  std::vector<Strip> strips_;
  std::vector<int32_t> key_table_, group_table_, used_labels_, run_table_, row_table_;
  std::vector<int32_t> strip_table_, cut_table_;
  int64_t most_keys_ = 0, most_labels_ = 0, pairs_ = 0, pieces_ = 0;
};

}  // namespace longspan::detail
