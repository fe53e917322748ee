// longspan profile: where the time of a training step goes.
#include "app/runs/profile.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "app/commands.h"
#include "app/step.h"
#include "core/backends.h"
#include "core/error.h"
#include "core/kernels/matmul.h"
#include "data/io/files.h"
#include "data/io/json.h"

namespace longspan {
namespace {

struct ProfileCommandOptions {
  int64_t steps = 5;
  bool json = false;
  void visit(auto& v) { v("steps", steps, range::between(1, 1000))("json", json); }
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Json rows_json(const std::vector<Profile::Row>& rows) {
  Json::Array all;
  for (const Profile::Row& r : rows) {
    all.push_back(Members{{"name", r.name},
                          {"direction", std::string(name_of(r.direction))},
                          {"calls", r.calls},
                          {"seconds", r.seconds},
                          {"macs", r.macs},
                          {"bytes", r.bytes},
                          {"saved", r.saved},
                          {"workspace", r.workspace}});
  }
  return all;
}

Json profile_json(const Profile& p, int64_t steps, double plain, double peak) {
  Json::Array phases, threads;
  for (const Profile::PhaseRow& r : p.phases) {
    phases.push_back(Members{{"name", r.name},
                             {"calls", r.calls},
                             {"seconds", r.seconds},
                             {"in_kernels", r.in_kernels}});
  }
  for (const Profile::Thread& t : p.threads) {
    threads.push_back(Members{{"busy", t.busy}, {"idle", t.idle}});
  }
  return Members{{"steps", steps},
                 {"seconds", p.seconds},
                 {"plain_seconds", plain},
                 {"peak_macs_per_second", peak},
                 {"in_kernels", p.in_kernels()},
                 {"between_kernels", p.between_kernels()},
                 {"outside", p.outside},
                 {"ops", rows_json(p.ops)},
                 {"layers", rows_json(p.layers)},
                 {"phases", std::move(phases)},
                 {"threads", std::move(threads)}};
}

std::string steps_text(int64_t steps, double seconds, double plain, double peak) {
  const auto n = static_cast<double>(steps);
  std::string text = fmt::format("{} step{} of {:.2f} ms, {:.2f} ms without the profile", steps,
                                 steps == 1 ? "" : "s", 1e3 * seconds / n, 1e3 * plain / n);
  if (peak > 0) {
    text += fmt::format(
        "; {} {:.1f} GMAC/s on registers",
        num_threads() == 1 ? "a thread reaches" : fmt::format("{} threads reach", num_threads()),
        1e-9 * peak);
  }
  return text;
}

}  // namespace

double measured_peak(Device device) {
  double macs = 0;
  const char* instructions = "";
  if (device.kind == DeviceKind::cpu) {
    kernels::measure_peak(device, num_threads(), PeakLoop::registers, 0.02, &macs, &instructions);
  }
  return macs;
}

void write_profile(const std::string& folder, const Profiler& profiler, const Profile& profile,
                   double peak) {
  require<IoError>(!std::filesystem::exists(folder), "profile",
                   "{} is there already; choose another folder", folder);
  make_folders(folder, "profile");
  profiler.write_trace(folder + "/trace.json");
  replace_file(folder + "/ops.csv", to_csv(profile.ops), "profile");
  replace_file(folder + "/layers.csv", to_csv(profile.layers), "profile");
  replace_file(folder + "/profile.txt", to_string(profile, peak), "profile");
}

std::string ProfiledSteps::before_step(int64_t done, const std::string& folder, bool last) {
  if (written_) return {};
  const int64_t steps = done - warm;
  if (steps < steps_ && !last) {
    if (steps == 0) profiler_.emplace(device_);
    return {};
  }
  written_ = true;
  if (!profiler_ || steps <= 0) {
    return fmt::format("no step was profiled: the first {} of a process are left out", warm);
  }
  const Profile profile = profiler_->profile();
  const double peak = measured_peak(device_);
  std::string free = folder;  // a run that was killed later may have profiled the same steps
  for (int i = 2; std::filesystem::exists(free); ++i) free = fmt::format("{}-{}", folder, i);
  write_profile(free, *profiler_, profile, peak);
  profiler_.reset();
  return to_string(profile, peak) +
         fmt::format("profile of {} step{}: {}", steps, steps == 1 ? "" : "s", free);
}

int profile_command(int argc, const char* const* argv) {
  const Flag own[] = {
      {"--profile", "profile.steps", "steps that are profiled, after two others"},
      {"--out", "", "a new folder for trace.json, ops.csv, layers.csv and profile.txt"},
      {"--json", "profile.json", "one JSON line, in seconds, bytes and multiply-accumulates",
       true}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan profile --model NAME [--length L] [--batch B] [--out DIR]: where the time of a "
      "training step goes, by op, layer, phase and thread. Inputs are synthetic; train --profile N "
      "profiles steps on real ones.");
  ProfileCommandOptions o;
  const Settings typed = taken(line, "profile.");
  set_fields(o, typed);
  check_ranges(o, typed);
  RunConfig config = planned_config(line);
  const std::string* const out = line.value("--out");
  require<IoError>(out == nullptr || !std::filesystem::exists(*out), "--out",
                   "{} is there already; choose another folder", out != nullptr ? *out : "");
  const Device device = parse_device(config.device);
  const StepPlanner planner(config, false);
  const std::function<void()> step = planner.steps_on(device);
  for (int64_t i = 0; i < ProfiledSteps::warm; ++i) step();
  const auto steps = [&] {
    const double begin = seconds_now();
    for (int64_t i = 0; i < o.steps; ++i) step();
    synchronize(device);
    return seconds_now() - begin;
  };
  const double peak = measured_peak(device), before = steps();
  std::optional<Profiler> profiler(std::in_place, device);
  steps();
  const Profile profile = profiler->profile();
  if (out != nullptr) write_profile(*out, *profiler, profile, peak);
  profiler.reset();
  const double plain = (before + steps()) / 2;  // processors change their speed
  if (o.json) {
    std::puts(to_string(profile_json(profile, o.steps, plain, peak)).c_str());
  } else {
    std::puts((to_string(profile, peak) + "\n" + steps_text(o.steps, profile.seconds, plain, peak))
                  .c_str());
    if (out != nullptr)
      std::puts(fmt::format("{}/trace.json opens in ui.perfetto.dev", *out).c_str());
  }
  return 0;
}

}  // namespace longspan
