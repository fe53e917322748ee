#pragma once

#include <cstdint>

#include "data/sample_task.h"

namespace longspan {

/// Object collision, \cite sukhbaatar2021 : two particles move on a grid and change their colours;
/// the question of each step is in which quadrant a pair of colours met last.
///
/// Particles begin at uniform positions of [0, grid - 1]^2 with velocities of N(0, speed^2) in each
/// direction. A step moves each particle by its velocity, which is drawn again as often as it would
/// lead to or beyond the border, and then draws a new colour (perhaps the same) with probability
/// `recolour`. Particles are in the cells to which their positions round; they meet in every step
/// in which both are in one cell.
///
/// A step has 8 tokens: row, column and colour of the first and of the second particle, and two
/// colours that ask for the latest meeting of a first particle of the one and a second particle of
/// the other colour, this step's included. With probability `recent` these are the colours of the
/// latest meeting, if there was one; else they are uniform. The last token of a step has the target
/// 1 + 2 * (lower half) + (right half) of the cell of that meeting, and none if these colours never
/// met. Tokens: rows, columns, colours, colours of the question. The four answers are equally
/// likely: chance accuracy is 1/4.
struct CollisionTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  static constexpr int64_t step_tokens = 8;
  int64_t steps = 0;  ///< of a sample; 0: as many as the run's length has space for
  int64_t grid = 16, colours = 5;
  double speed = 0.5;  ///< standard deviation of velocities, in cells per step
  double recolour = 0.05, recent = 0.4;

  int64_t length() const { return step_tokens * steps; }
  int64_t vocabulary() const { return 2 * (grid + colours); }
  /// Returns the target for a meeting in a cell, 1 to 4. The middle of an odd grid is upper and
  /// left.
  int32_t quadrant(int64_t row, int64_t column) const;
  void visit(auto& v) {
    v("steps", steps, range::not_negative,
      "of a sample; 0: as many as the run's length has space for");
    v("grid", grid, range::between(2, 4096), "cells of the grid in each direction");
    v("colours", colours, range::between(1, 4096), "colours of a particle");
    v("speed", speed, range::at_least(1e-3), "standard deviation of velocities, in cells per step");
    v("recolour", recolour, range::fraction, "probability of a new colour in a step");
    v("recent", recent, range::fraction, "probability that the latest meeting is asked for");
  }
  void fit(int64_t run_length, int64_t vocabulary);
  SampleShape shape() const { return {length(), vocabulary(), -1}; }
  /// Throws ValueError that names the option if it is out of its range.
  Sample sample(const SampleKey& key) const;
};

}  // namespace longspan
