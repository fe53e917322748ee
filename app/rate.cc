#include "app/rate.h"

#include <fmt/format.h>

#include <algorithm>

#include "train/schedule.h"

namespace longspan {
namespace {

/// Returns the rate of a schedule at a step, with `progress` from 0 at the end of the warm-up to 1
/// at its end.
double rate_of(const RunConfig& c, int64_t step, double progress) {
  const RunConfig::Schedule& s = c.schedule;
  const double peak = c.optimizer.lr;
  switch (s.name) {
    case ScheduleName::cosine:
      return Cosine{.peak = peak, .warmup = s.warmup, .floor = s.floor}.at(step, progress);
    case ScheduleName::linear:
      return LinearDecay{.peak = peak, .warmup = s.warmup, .floor = s.floor}.at(step, progress);
    case ScheduleName::inverse_sqrt:
      return InverseSqrt{peak, s.warmup}(step);
    case ScheduleName::step:
      return Stepwise{peak, s.warmup, s.every, s.factor}(step);
    case ScheduleName::constant:
      break;
  }
  return Constant{peak, s.warmup}(step);
}

}  // namespace

std::string remark_on_warmup(const RunConfig& c, int64_t start, int64_t last) {
  const int64_t steps = last - start, warmup = c.schedule.warmup;
  if (warmup < steps || steps < 1) return {};
  const double reached = rate_of(c, steps - 1, 0);
  return fmt::format(
      "the warm-up of {} steps does not end in {}: the learning rate rises to {:.2g} of {:.2g}; "
      "--set schedule.warmup={} would end it after a tenth of them",
      warmup, steps, reached, c.optimizer.lr, std::max<int64_t>(steps / 10, 1));
}

Json ScheduleState::value() const {
  return Members{{"start", start}, {"began", began}, {"progress", progress}, {"rate", rate}};
}

ScheduleState ScheduleState::read(const Json& values, double trained, double planned) {
  const Json* all = values.find("schedule");
  if (all == nullptr) return {.progress = planned > 0 ? std::min(1.0, trained / planned) : 1};
  return {.start = (*all)["start"].integer(),
          .began = (*all)["began"].number(),
          .progress = (*all)["progress"].number(),
          .rate = (*all)["rate"].number()};
}

LearningRate::LearningRate(const RunConfig& config, const ScheduleState& from, double trained)
    : config_(config), from_(from), now_(from), trained_(trained - from.began) {}

double LearningRate::progress(int64_t step, double elapsed) {
  const int64_t warmup = config_.schedule.warmup, local = step - from_.start;
  if (config_.steps > 0) {
    last_ = config_.steps;
    return schedule_progress(local, warmup, config_.steps - from_.start);
  }
  if (from_.progress > 0 && local >= warmup) {
    const double share =
        from_.progress + (1 - from_.progress) * std::min(1.0, elapsed / config_.seconds);
    last_ = std::max(static_cast<int64_t>(static_cast<double>(step) / share), step + 1);
    return share;
  }
  // The last step is extrapolated from the pace so far.
  const double fraction = (trained_ + elapsed) / (trained_ + config_.seconds);
  const int64_t steps =
      fraction > 0 ? static_cast<int64_t>(static_cast<double>(local) / fraction) : 0;
  last_ = std::max(from_.start + steps, step + 1);
  return schedule_progress(local, warmup, last_ - from_.start);
}

double LearningRate::at(int64_t step, double elapsed) {
  now_.progress = progress(step, elapsed);
  now_.rate = rate_of(config_, step - from_.start, now_.progress);
  return now_.rate;
}

std::string LearningRate::outlook(int64_t step) const {
  LearningRate next(config_, from_, trained_ + from_.began);
  const double rate = next.at(step, 0);
  const ScheduleName name = config_.schedule.name;
  const bool falls = name == ScheduleName::cosine || name == ScheduleName::linear;
  const double end = config_.optimizer.lr * config_.schedule.floor;
  const std::string until = config_.steps > 0
                                ? fmt::format("at step {}", config_.steps)
                                : fmt::format("in the {:g} s of this start", config_.seconds);
  constexpr double alike = 1.01, near_floor = 1.1;
  std::string text = fmt::format("the learning rate continues at {:.3g}", rate);
  if (step - from_.start < config_.schedule.warmup) return text + ", in its warm-up";
  if (from_.rate > 0 && rate > from_.rate * alike) {
    text = fmt::format("the learning rate rises from {:.3g} to {:.3g}", from_.rate, rate);
  }
  if (falls && rate <= end * near_floor) {
    return text + ", the floor of its schedule: --rewarm starts the schedule anew";
  }
  return falls ? fmt::format("{} and falls to {:.3g} {}", text, end, until) : text;
}

}  // namespace longspan
