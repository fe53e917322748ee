#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/ops/attention_oracle.h"

/// Cases of block attention, and laws that other kernels than the CPU's are held to.
namespace longspan::attention_test {

/// A pattern, and which pairs it is to allow.
struct PatternCase {
  AttentionPattern pattern;
  std::function<bool(int64_t, int64_t)> sees;  // position of the query, key
};
std::vector<PatternCase> cases();

struct Case {
  Problem x;
  AttentionPattern pattern;
};
/// The pairs of its pattern as two parts.
std::vector<AttentionPattern> parts_of(const Case& c);

/// What a pattern can do beyond one rule for all heads.
struct Feature {
  std::string name;
  std::function<Case(int64_t length, int64_t batch)> make;
};
const std::vector<Feature>& features();

/// A first segment without keys leaves everything to the second.
void expect_no_first_keys(DType dtype);
/// Few queries before many keys: devices cut the keys into stretches, and join what these give.
void expect_few_queries(DType dtype, bool relations);
/// Windows beside some rows that see all and some keys that all see, first of head 0, last of head
/// 1, and a second segment that all see: devices cut what is so much longer than the rest.
Case globals_beside_windows(int64_t side_keys);
void expect_globals_beside_windows(DType dtype);

}  // namespace longspan::attention_test
