#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/ops/attention_oracle.h"

/// Cases of block attention, and checks that the kernels of every backend must pass.
namespace longspan::attention_test {

/// A pattern, and the pairs that it must allow.
struct PatternCase {
  AttentionPattern pattern;
  std::function<bool(int64_t, int64_t)> sees;  // position of the query, key
};
std::vector<PatternCase> cases();

struct Case {
  Problem x;
  AttentionPattern pattern;
};
/// Splits the pairs of the case's pattern into two disjoint patterns.
std::vector<AttentionPattern> parts_of(const Case& c);

/// A feature of patterns beyond one rule for all heads, with a case that uses it.
struct Feature {
  std::string name;
  std::function<Case(int64_t length, int64_t batch)> make;
};
const std::vector<Feature>& features();

/// Checks that a first segment without keys leaves all attention to the second.
void expect_no_first_keys(DType dtype);
/// Checks few queries with many keys, for which devices split the keys and merge the partial
/// results.
void expect_few_queries(DType dtype, bool relations);
/// Returns windows plus global rows, which attend to all keys, and global keys, to which all rows
/// attend: the first ones in head 0, the last ones in head 1. All rows also attend to a second
/// segment of `side_keys` keys. Devices split the work of the globals, which is much longer than
/// the rest.
Case globals_beside_windows(int64_t side_keys);
void expect_globals_beside_windows(DType dtype);

}  // namespace longspan::attention_test
