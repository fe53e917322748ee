// Object collision, replayed from its tokens.
#include "data/collision.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "core/error.h"
#include "nn/objective.h"
#include "tests/harness/messages.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

/// What the tokens of a step say.
struct Frame {
  std::array<int32_t, 2> row, column, colour, asked;
};

std::vector<Frame> frames_of(const CollisionTask& task, const Sample& s) {
  const auto grid = static_cast<int32_t>(task.grid), colours = static_cast<int32_t>(task.colours);
  const auto within = [](int32_t token, int32_t first, int32_t count) {
    EXPECT_TRUE(token >= first && token < first + count) << token;
    return token - first;
  };
  std::vector<Frame> frames;
  for (size_t i = 0; i + 8 <= s.tokens.size(); i += 8) {
    Frame& f = frames.emplace_back();
    for (size_t p = 0; p < 2; ++p) {
      f.row[p] = within(s.tokens[i + 3 * p], 0, grid);
      f.column[p] = within(s.tokens[i + 3 * p + 1], grid, grid);
      f.colour[p] = within(s.tokens[i + 3 * p + 2], 2 * grid, colours);
      f.asked[p] = within(s.tokens[i + 6 + p], 2 * grid + colours, colours);
    }
  }
  return frames;
}

bool meet(const Frame& f) { return f.row[0] == f.row[1] && f.column[0] == f.column[1]; }

/// Expects a count of `all` independent cases, each with this probability.
void expect_share(int64_t count, int64_t all, double probability, const char* what) {
  const auto n = static_cast<double>(all);
  EXPECT_NEAR(static_cast<double>(count) / n, probability,
              4 * std::sqrt(probability * (1 - probability) / n))
      << what;
}

TEST(Collision, QuadrantsAreThoseOfTheFormula) {
  const CollisionTask task;
  EXPECT_EQ(task.vocabulary(), 42);
  for (int64_t row = 0; row < 16; ++row) {
    for (int64_t column = 0; column < 16; ++column) {
      const double lower = std::round((static_cast<double>(row) + 0.5) / 16);
      const double right = std::round((static_cast<double>(column) + 0.5) / 16);
      EXPECT_EQ(task.quadrant(row, column), static_cast<int32_t>(1 + 2 * lower + right));
    }
  }
  EXPECT_EQ(task.quadrant(7, 7), 1);
  EXPECT_EQ(task.quadrant(7, 8), 2);
  EXPECT_EQ(task.quadrant(8, 7), 3);
  EXPECT_EQ(task.quadrant(8, 8), 4);
  const CollisionTask odd{.grid = 3};
  EXPECT_EQ(odd.quadrant(1, 1), 1);
  EXPECT_EQ(odd.quadrant(1, 2), 2);
  EXPECT_EQ(odd.quadrant(2, 0), 3);
}

TEST(Collision, AnswersFollowFromTheTokens) {
  for (const CollisionTask& task :
       {CollisionTask{.steps = 600}, CollisionTask{.steps = 200, .grid = 3, .colours = 2},
        CollisionTask{.steps = 1, .grid = 2, .colours = 1, .speed = 2}}) {
    int64_t scored = 0, meetings = 0, pairs_swapped = 0;
    for (uint64_t index = 0; index < 40; ++index) {
      const Sample s = task.sample({.seed = 9, .index = index});
      ASSERT_EQ(std::ssize(s.tokens), task.length());
      ASSERT_EQ(s.targets.size(), s.tokens.size());
      std::map<std::array<int32_t, 2>, std::array<int32_t, 2>> met;  // colours: the latest cell
      const std::vector<Frame> frames = frames_of(task, s);
      ASSERT_EQ(std::ssize(frames), task.steps);
      for (size_t i = 0; i < frames.size(); ++i) {
        const Frame& f = frames[i];
        if (meet(f)) {
          ++meetings;
          met[f.colour] = {f.row[0], f.column[0]};
        }
        for (size_t j = 0; j < 7; ++j) EXPECT_EQ(s.targets[8 * i + j], ignored_target);
        const int32_t target = s.targets[8 * i + 7];
        const auto cell = met.find(f.asked);
        EXPECT_EQ(target == ignored_target, cell == met.end()) << i;
        pairs_swapped += cell == met.end() && met.contains({f.asked[1], f.asked[0]}) ? 1 : 0;
        if (cell == met.end()) continue;
        ++scored;
        const auto half = [&](int32_t at) {
          return (static_cast<double>(at) + 0.5) / static_cast<double>(task.grid) > 0.5 ? 1 : 0;
        };
        EXPECT_EQ(target, 1 + 2 * half(cell->second[0]) + half(cell->second[1])) << i;
      }
    }
    EXPECT_GT(scored, 0);
    EXPECT_GT(meetings, 0);
    EXPECT_EQ(pairs_swapped > 0, task.colours > 1) << "the order of the colours counts";
  }
}

// Each figure has one independent case per sample, or one per step where steps are independent.
TEST(Collision, HasTheProbabilitiesOfThePaper) {
  const CollisionTask task{.steps = 500};
  constexpr uint64_t samples = 1000;
  std::map<int32_t, int64_t> last_answers;
  int64_t answered = 0, asked = 0, latest_asked = 0, moves = 0, recoloured = 0;
  std::array<int64_t, 5> colours{};
  for (uint64_t index = 0; index < samples; ++index) {
    const Sample s = task.sample({.seed = 2, .index = index});
    const std::vector<Frame> frames = frames_of(task, s);
    ++colours.at(static_cast<size_t>(frames.back().colour[0]));
    const Frame* latest = nullptr;
    for (size_t i = 0; i < frames.size(); ++i) {
      const Frame& f = frames[i];
      if (meet(f)) latest = &f;
      if (latest != nullptr) {
        ++asked;
        latest_asked += f.asked == latest->colour ? 1 : 0;
      }
      for (size_t p = 0; p < 2 && i > 0; ++p) {
        ++moves;
        recoloured += f.colour[p] != frames[i - 1].colour[p] ? 1 : 0;
      }
    }
    int32_t last = 0;
    for (const int32_t target : s.targets) last = target == ignored_target ? last : target;
    if (last == 0) continue;
    ++answered;
    ++last_answers[last];
  }
  ASSERT_GT(answered, 600) << "most samples of 500 steps have answers";
  ASSERT_EQ(std::ssize(last_answers), 4);
  for (const auto& [answer, count] : last_answers) {
    EXPECT_TRUE(answer >= 1 && answer <= 4);
    expect_share(count, answered, 0.25, "an answer");
  }
  expect_share(latest_asked, asked, 0.4 + 0.6 / 25, "questions for the latest meeting");
  expect_share(recoloured, moves, 0.05 * 4 / 5, "another colour");
  for (const int64_t count : colours) expect_share(count, int64_t{samples}, 0.2, "a colour");
}

/// Returns how many of the steps of some samples have a target, in per cent.
double steps_with_a_target(int64_t steps, uint64_t samples) {
  CollisionTask task;
  task.steps = steps;
  int64_t answered = 0;
  for (uint64_t i = 0; i < samples; ++i) {
    const Sample s = task.sample({.index = i});
    for (const int32_t target : s.targets) answered += target == ignored_target ? 0 : 1;
  }
  return 100.0 * static_cast<double>(answered) / static_cast<double>(steps * int64_t(samples));
}

// docs/data.md says which share of the steps has a target.
TEST(Collision, HasMoreTargetsInLongerSamples) {
  EXPECT_NEAR(steps_with_a_target(500, 1200), 18, 1.5);
  EXPECT_NEAR(steps_with_a_target(2000, 300), 36, 2);
  EXPECT_NEAR(steps_with_a_target(8000, 75), 56, 2.5);
}

// Away from the border, a cell changes by a normal velocity, rounded at a uniform phase.
TEST(Collision, MovesAtTheSpeedOfThePaper) {
  double mean = 0, square = 0, fourth = 0;  // of the first move, of velocities up to four sigma
  for (double v = -2; v <= 2; v += 1e-4) {
    const double p = std::exp(-v * v / 0.5) / std::sqrt(0.5 * M_PI) * 1e-4;
    const double low = std::floor(v), share = v - low;
    square += p * ((1 - share) * low * low + share * (low + 1) * (low + 1));
    fourth += p * ((1 - share) * std::pow(low, 4) + share * std::pow(low + 1, 4));
  }
  const CollisionTask task{.steps = 2};
  double n = 0, sum = 0, squares = 0;
  for (uint64_t index = 0; index < 20000; ++index) {
    const std::vector<Frame> f = frames_of(task, task.sample({.seed = 4, .index = index}));
    for (size_t p = 0; p < 2; ++p) {
      for (const auto axis : {&Frame::row, &Frame::column}) {
        const int32_t from = (f[0].*axis)[p], to = (f[1].*axis)[p];
        if (from < 4 || from > 11) continue;
        ++n;
        sum += to - from;
        squares += (to - from) * (to - from);
      }
    }
  }
  ASSERT_GT(n, 30000);
  EXPECT_NEAR(sum / n, mean, 4 * std::sqrt(square / n));
  EXPECT_NEAR(squares / n, square, 4 * std::sqrt((fourth - square * square) / n));
}

// Slow particles are still where they began; the outermost cells are half as wide as the others.
TEST(Collision, BeginsAnywhere) {
  const CollisionTask task{.steps = 1, .speed = 0.001};
  constexpr uint64_t samples = 4000;
  std::array<int64_t, 16> rows{}, columns{};
  for (uint64_t index = 0; index < samples; ++index) {
    const Frame f = frames_of(task, task.sample({.seed = 6, .index = index}))[0];
    for (size_t p = 0; p < 2; ++p) {
      ++rows.at(static_cast<size_t>(f.row[p]));
      ++columns.at(static_cast<size_t>(f.column[p]));
    }
  }
  for (size_t cell = 0; cell < 16; ++cell) {
    const double share = cell == 0 || cell == 15 ? 0.5 / 15 : 1.0 / 15;
    expect_share(rows[cell], 2 * int64_t{samples}, share, "a row");
    expect_share(columns[cell], 2 * int64_t{samples}, share, "a column");
  }
}

TEST(Collision, ProbabilitiesOfNoneAndOne) {
  const CollisionTask still{.steps = 3000, .recolour = 0, .recent = 1};
  const Sample s = still.sample({.seed = 3});
  const std::vector<Frame> frames = frames_of(still, s);
  bool met = false;
  std::set<std::array<int32_t, 2>> before;
  for (const Frame& f : frames) {
    EXPECT_EQ(f.colour, frames[0].colour);
    met = met || meet(f);
    if (!met) before.insert(f.asked);
    EXPECT_TRUE(!met || f.asked == f.colour);
  }
  EXPECT_TRUE(met);
  EXPECT_GT(before.size(), 1u) << "before the first meeting, questions are uniform";
}

TEST(Collision, IsThatOfItsKeyAndLength) {
  const CollisionTask task{.steps = 50};
  const SampleKey key{.seed = 3, .split = "test", .index = 5};
  EXPECT_EQ(task.sample(key), task.sample(key));
  for (const SampleKey& other :
       {SampleKey{4, "test", 5}, SampleKey{3, "train", 5}, SampleKey{3, "test", 6}}) {
    EXPECT_NE(task.sample(key).tokens, task.sample(other).tokens);
  }
  // A longer sample begins with the shorter one.
  const Sample all = CollisionTask{.steps = 60}.sample(key), part = task.sample(key);
  EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(), all.tokens.begin()));
  CollisionTask fitted;
  fitted.fit(519, 42);
  EXPECT_EQ(fitted.shape().length, 512);
  CollisionTask own{.steps = 2000};
  own.fit(519, 42);
  EXPECT_EQ(own.shape().length, 16000);
  const std::string none = message_of<ValueError>([] { CollisionTask{}.fit(7, 42); });
  EXPECT_TRUE(contains(none, "length: got 7; expected 8 or more")) << none;
}

TEST(Collision, NamesTheOptionThatIsWrong) {
  const auto refused = [](const CollisionTask& task, std::string_view option) {
    const std::string message = message_of<ValueError>([&] { task.sample({}); });
    EXPECT_TRUE(message.starts_with(option)) << message;
    const std::string early =
        message_of<ValueError>([fitted = task]() mutable { fitted.fit(100, 50); });
    EXPECT_EQ(early, message);
  };
  refused({.steps = -1}, "collision.steps: got -1; expected 1 to 268435455");
  refused({.steps = 1 << 28}, "collision.steps: got 268435456; expected 1 to 268435455");
  refused({.steps = 9, .grid = 1}, "collision.grid: got 1; expected 2 to 4096");
  refused({.steps = 9, .grid = 4097}, "collision.grid: got 4097; expected 2 to 4096");
  refused({.steps = 9, .colours = 0}, "collision.colours: got 0; expected 1 to 4096");
  refused({.steps = 9, .speed = 0}, "collision.speed: got 0; expected 0.001 to 16");
  refused({.steps = 9, .speed = 17}, "collision.speed: got 17; expected 0.001 to 16");
  refused({.steps = 9, .speed = NAN}, "collision.speed: got nan; expected 0.001 to 16");
  refused({.steps = 9, .recolour = 1.5}, "collision.recolour: got 1.5; expected a probability");
  refused({.steps = 9, .recent = -0.5}, "collision.recent: got -0.5; expected a probability");
}

}  // namespace
}  // namespace longspan
