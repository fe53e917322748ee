#include "app/ranks/processes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "core/ranks/packed.h"

namespace longspan {
namespace {

/// Returns "rank 1", "ranks 0, 2, 3".
std::string ranks_text(const std::set<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
}

}  // namespace

std::string share_processors(Communicator& ranks) {
  if (ranks.size() == 1) return {};
  const std::vector<int> own = allowed_processors();
  // Ranks of one host whose allowed processors are equal divide these evenly.
  const std::string mine =
      fmt::format("{} {}", ranks.host(), fmt::join(own.begin(), own.end(), ","));
  const std::vector<std::string> all = ranks.gather(mine, "the processors of the processes");
  std::set<std::string> hosts;
  size_t alike = 0, before = 0;
  for (size_t r = 0; r < all.size(); ++r) {
    hosts.insert(all[r].substr(0, all[r].find(' ')));
    if (all[r] != mine) continue;
    if (static_cast<int>(r) < ranks.rank()) ++before;
    ++alike;
  }
  std::vector<int> part = own;
  if (alike > 1) {
    const size_t n = own.size();
    const size_t begin = before * n / alike, end = (before + 1) * n / alike;
    part = end > begin ? std::vector<int>(own.begin() + static_cast<std::ptrdiff_t>(begin),
                                          own.begin() + static_cast<std::ptrdiff_t>(end))
                       : std::vector<int>{own[before % n]};
    run_on(part);
  }
  std::string text =
      fmt::format("{} processes on {} host{}, {} processor{} each", all.size(), hosts.size(),
                  hosts.size() > 1 ? "s" : "", part.size(), part.size() == 1 ? "" : "s");
  if (part.size() == 1 && own.size() == 1 && ranks.local_size() < sysconf(_SC_NPROCESSORS_ONLN)) {
    text += "; mpirun has bound each to one: mpirun --bind-to none lets them share all";
  }
  return text;
}

void share_devices(Communicator& ranks) {
  if (ranks.size() == 1) return;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string mine = fmt::format("{} {}", ranks.host(), visible != nullptr ? visible : "all");
  // Processes of a host that may use the same devices take them in turn; a launcher may have given
  // each its own.
  size_t place = 0;
  const std::vector<std::string> all = ranks.gather(mine, "the devices of the processes");
  for (int r = 0; r < ranks.rank(); ++r) place += all[static_cast<size_t>(r)] == mine ? 1 : 0;
  if (visible != nullptr && *visible == '\0') return;  // there are to be none
  std::vector<std::string> devices;
  std::stringstream names(visible != nullptr ? visible : "");
  for (std::string name; std::getline(names, name, ',');) devices.push_back(name);
  if (devices.size() == 1) return;  // one for all
  std::string own = devices.empty() ? std::to_string(place) : "none";
  if (place < devices.size()) own = devices[place];
  setenv("CUDA_VISIBLE_DEVICES", own.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): no thread yet
}

void start_together(Communicator& ranks, const std::function<void()>& start) {
  if (ranks.size() == 1) return start();
  std::string problem;
  try {
    start();
  } catch (const std::exception& e) {
    problem = *e.what() != '\0' ? e.what() : "an error without a message";
  }
  const std::vector<std::string> all = ranks.gather(problem, "the start of the processes");
  std::map<std::string, std::set<int>> problems;
  for (size_t r = 0; r < all.size(); ++r) problems[all[r]].insert(static_cast<int>(r));
  if (problems.size() == 1 && problems.begin()->first.empty()) return;
  if (ranks.rank() != 0) throw Silent();
  if (problems.size() == 1) throw ValueError(problem);
  std::string text;
  for (const auto& [what, who] : problems) {
    if (!what.empty())
      text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", ranks_text(who), what);
  }
  fail("ranks", "{}", text);
}

void require_equal(Communicator& ranks, const Facts& facts) {
  if (ranks.size() == 1) return;
  Packer mine;
  for (const auto& [name, value] : facts) {
    mine.put(name);
    mine.put(value);
  }
  std::vector<std::map<std::string, std::string>> all;
  for (const std::string& bytes : ranks.gather(mine.taken(), "what the processes compare")) {
    std::map<std::string, std::string>& of_rank = all.emplace_back();
    for (Unpacker u(bytes); !u.empty();) {
      std::string name = u.text();
      of_rank[std::move(name)] = u.text();
    }
  }
  std::string differ;
  for (const auto& [name, value] : all[0]) {
    std::set<int> others;
    std::string other;
    for (size_t r = 1; r < all.size(); ++r) {
      if (all[r][name] == value) continue;
      others.insert(static_cast<int>(r));
      other = all[r][name];
    }
    if (others.empty()) continue;
    differ += fmt::format("{}{} is {} in rank 0 and {} in {}", differ.empty() ? "" : "; ", name,
                          value, other.empty() ? "missing" : other, ranks_text(others));
  }
  require(differ.empty(), "ranks",
          "the processes are not alike: {}; expected the same program, options, files and kind of "
          "processor everywhere",
          differ);
}

void end_together(Communicator& ranks, const std::string& message) {
  // What all processes see, such as a loss that is not finite, the first one says.
  if (ranks.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  ranks.abort(message);
}

}  // namespace longspan
