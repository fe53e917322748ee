#include "data/collision.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"

namespace longspan {
namespace {

void check(const CollisionTask& t) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / CollisionTask::step_tokens;
  require(t.steps >= 1 && t.steps <= most, "collision.steps", "got {}; expected 1 to {}", t.steps,
          most);
  require(t.grid >= 2 && t.grid <= 4096, "collision.grid", "got {}; expected 2 to 4096", t.grid);
  require(t.colours >= 1 && t.colours <= 4096, "collision.colours", "got {}; expected 1 to 4096",
          t.colours);
  const auto widest = static_cast<double>(t.grid);
  require(t.speed >= 1e-3 && t.speed <= widest, "collision.speed",
          "got {}; expected 0.001 to {} cells per step", t.speed, widest);
  require(t.recolour >= 0 && t.recolour <= 1, "collision.recolour",
          "got {}; expected a probability, 0 to 1", t.recolour);
  require(t.recent >= 0 && t.recent <= 1, "collision.recent",
          "got {}; expected a probability, 0 to 1", t.recent);
}

struct Particle {
  std::array<double, 2> position, velocity;
  int64_t colour;

  /// Returns the row (axis 0) or the column (axis 1) of its cell.
  int64_t cell(size_t axis) const { return static_cast<int64_t>(std::floor(position[axis] + 0.5)); }
};

std::array<double, 2> draw_velocity(Draws& draws, double speed) {
  const std::array<float, 2> n = draws.normals();
  return {speed * double{n[0]}, speed * double{n[1]}};
}

Particle draw_particle(Draws& draws, const CollisionTask& task) {
  const auto last = static_cast<double>(task.grid - 1);
  const double row = last * draws.uniform(), column = last * draws.uniform();
  const std::array<double, 2> velocity = draw_velocity(draws, task.speed);
  return {{row, column}, velocity, draws.below(task.colours)};
}

void step(Particle& p, Draws& draws, const CollisionTask& task) {
  const auto last = static_cast<double>(task.grid - 1);
  const auto stays_inside = [&](size_t axis) {
    const double next = p.position[axis] + p.velocity[axis];
    return next > 0 && next < last;
  };
  while (!stays_inside(0) || !stays_inside(1)) p.velocity = draw_velocity(draws, task.speed);
  for (size_t axis = 0; axis < 2; ++axis) p.position[axis] += p.velocity[axis];
  if (draws.uniform() < task.recolour) p.colour = draws.below(task.colours);
}

}  // namespace

int32_t CollisionTask::quadrant(int64_t row, int64_t column) const {
  return 1 + (2 * row + 1 > grid ? 2 : 0) + (2 * column + 1 > grid ? 1 : 0);
}

void CollisionTask::fit(int64_t run_length, int64_t /*vocabulary*/) {
  if (steps == 0) {
    require(run_length >= step_tokens, "length",
            "got {}; expected {} or more, the tokens of a step, or collision.steps", run_length,
            step_tokens);
    steps = run_length / step_tokens;
  }
  check(*this);
}

Sample CollisionTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("collision", key);
  Particle first = draw_particle(draws, *this), second = draw_particle(draws, *this);
  // The answer to each pair of colours, at first colour * colours + second colour.
  std::vector<int32_t> answers(static_cast<size_t>(colours * colours), ignored_target);
  int64_t latest = -1;  // the pair that met last
  Sample s;
  for (int64_t i = 0; i < steps; ++i) {
    step(first, draws, *this);
    step(second, draws, *this);
    if (first.cell(0) == second.cell(0) && first.cell(1) == second.cell(1)) {
      latest = first.colour * colours + second.colour;
      answers[static_cast<size_t>(latest)] = quadrant(first.cell(0), first.cell(1));
    }
    const bool ask_latest = draws.uniform() < recent && latest >= 0;
    const int64_t asked = ask_latest ? latest : draws.below(colours * colours);
    for (const Particle& p : {first, second}) {
      for (const int64_t token : {p.cell(0), grid + p.cell(1), 2 * grid + p.colour}) {
        s.tokens.push_back(static_cast<int32_t>(token));
      }
    }
    for (const int64_t colour : {asked / colours, asked % colours}) {
      s.tokens.push_back(static_cast<int32_t>(2 * grid + colours + colour));
    }
    s.targets.resize(s.tokens.size(), ignored_target);
    s.targets.back() = answers[static_cast<size_t>(asked)];
  }
  return s;
}

}  // namespace longspan
