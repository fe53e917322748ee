#include "app/provenance.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "app/make_config.h"
#include "app/run.h"
#include "app/tasks/table.h"
#include "core/build.h"
#include "core/error.h"
#include "data/io/files.h"

namespace longspan {
namespace {

/// Returns the instruction set of our kernels and, if it is used, the OpenBLAS version; or the
/// device.
std::string processor_of(const RunConfig& config) {
  if (config.device != "cpu") return config.device;
  std::string all(cpu_instructions());
  if (config.matmul_library == MatmulLibrary::openblas) {
    all += fmt::format(" and {}", openblas_description());
  }
  return all;
}

/// Returns the member of that name if it is a string, else null.
const std::string* text_of(const Json& values, std::string_view name) {
  const Json* value = values.find(name);
  return value != nullptr && value->is_string() ? &value->string() : nullptr;
}

}  // namespace

Members Provenance::values() const {
  return {{"data", Members{{"bytes", data.bytes}, {"xxh3", data.xxh3}, {"tokens", tokens}}},
          {"processor", processor},
          {"build", build}};
}

Provenance provenance_of(const RunConfig& config) {
  return {.data = fingerprint_of_data(config),
          .tokens = tokens_of(config).identity,
          .processor = processor_of(config),
          .build = build_description()};
}

namespace {

/// Calls visit("optimizer.lr", value) for every value of a configuration.
void each_setting(const Json& config, const std::string& prefix,
                  const std::function<void(const std::string&, const Json&)>& visit) {
  for (const JsonMember& m : config.object()) {
    if (m.value.is_object()) {
      each_setting(m.value, prefix + m.name + ".", visit);
    } else {
      visit(prefix + m.name, m.value);
    }
  }
}

/// Returns the value "optimizer.lr" of a configuration, or null.
const Json* value_of(const Json& config, std::string_view key) {
  const Json* at = &config;
  while (at != nullptr) {
    const size_t dot = key.find('.');
    at = at->find(key.substr(0, dot));
    if (dot == std::string_view::npos) break;
    key.remove_prefix(dot + 1);
  }
  return at;
}

/// Returns the keys of the settings that differ.
std::vector<std::string> differing(const Before& before, RunConfig& now) {
  std::vector<std::string> keys;
  each_setting(to_json(now), "", [&](const std::string& key, const Json& value) {
    const Json* old = before.find(key);
    if (old != nullptr && !(*old == value)) keys.push_back(key);
  });
  return keys;
}

/// Returns "KEY is NOW, and was BEFORE".
std::string line_of(const std::string& key, const Before& before, RunConfig& now) {
  const Json values = to_json(now);
  return fmt::format("{} is {}, and was {}", key, to_string(*value_of(values, key)),
                     to_string(*before.find(key)));
}

/// Returns the shares of the splits that a run had; nothing if that is unknown.
std::optional<Split> split_before(const Before& before, const RunConfig& now) {
  const Json* old = before.find("split");
  if (old == nullptr) return {};
  const Json* task = before.find("task");
  RunConfig there;
  there.task = task != nullptr ? task->string() : now.task;
  there.of_task = make_task(there.task);
  there.split = old->string();
  return split_of(there);
}

std::string shares_of(const Split& s) { return fmt::format("{}/{}/{}", s.train, s.valid, s.test); }

/// Returns the remark on a split that has changed; "" if it has not, or is unknown.
std::string other_split(const Before& before, const RunConfig& now) {
  const std::optional<Split> here = split_of(now), there = split_before(before, now);
  if (!here || !there || *here == *there) return {};
  return fmt::format(
      "the split is {}, and that of {} {}: what it was trained on moves into "
      "another part",
      shares_of(*here), before.path, shares_of(*there));
}

Fingerprint data_of(const Before& before) {
  const Json* data = before.values.find("data");
  return data == nullptr ? Fingerprint{}
                         : Fingerprint{(*data)["bytes"].integer(), (*data)["xxh3"].string()};
}

}  // namespace

Before::Before(Json state, const std::string& run, std::string checkpoint)
    : values(std::move(state)), path(std::move(checkpoint)) {
  if (const Json* own = values.find("config")) {
    config = *own;
    return;
  }
  const std::string file = run + "/config.toml";
  if (kind_of_path(file, "state") == PathKind::nothing) return;
  RunConfig there = make_config(read_toml(file));
  config = to_json(there);
}

const Json* Before::find(std::string_view key) const { return value_of(config, key); }

std::vector<std::string> compare_inputs(const Before& before, RunConfig& now, Reads reads,
                                        std::string_view op, bool allowed,
                                        const Provenance* known) {
  std::vector<std::string> remarks;
  const auto differ = [&](const std::string& what) {
    require(allowed, op, "{}; expected the same, or --other-data to go on with these", what);
    remarks.push_back(what);
  };
  const Json* data = before.values.find("data");
  if (data != nullptr && reads == Reads::data) {
    const Fingerprint there = data_of(before),
                      here = known != nullptr ? known->data : fingerprint_of_data(now);
    // Earlier versions took no fingerprint of stories.
    if (there.bytes > 0 && !(there == here)) {
      differ(
          fmt::format("the data are others than those that {} was trained on: {} bytes with "
                      "checksum {}, and there {} with {}",
                      before.path, here.bytes, here.xxh3, there.bytes, there.xxh3));
    }
  }
  if (data != nullptr) {
    const std::string& there = (*data)["tokens"].string();
    const std::string here = known != nullptr ? known->tokens : tokens_of(now).identity;
    const std::string name = now.tokenizer.empty() ? "" : fmt::format(" of {}", now.tokenizer);
    if (!same_tokens(there, here)) {
      differ(
          fmt::format("the tokens{} are {}, and those of {} {}", name, here, before.path, there));
    }
  }
  if (reads == Reads::tokens) return remarks;
  if (const std::string split = other_split(before, now); !split.empty()) differ(split);
  const Json* task = before.find("task");
  const bool generated = task != nullptr && is_generated(find_task(task->string()).set.kind);
  for (const std::string& key : differing(before, now)) {
    if (!now.of_task->decides_samples(key) && !(generated && key == "task")) continue;
    differ(fmt::format("other samples are generated than for {}: {}", before.path,
                       line_of(key, before, now)));
  }
  return remarks;
}

void require_same_split(const Before& before, const RunConfig& now, std::string_view op) {
  const std::string split = other_split(before, now);
  require(split.empty() || !(data_of(before) == fingerprint_of_data(now)), op,
          "{}; expected the same, or --other-data to start with this one", split);
}

std::vector<std::string> compare_machines(const Before& before, const Provenance& now) {
  std::vector<std::string> remarks;
  const std::string* processor = text_of(before.values, "processor");
  if (processor != nullptr && *processor != now.processor) {
    remarks.push_back(
        fmt::format("{} was written with the instructions {}, and this process uses {}: the last "
                    "bits of what follows may differ from those of a run without interruption",
                    before.path, *processor, now.processor));
  }
  const std::string* build = text_of(before.values, "build");
  if (build != nullptr && *build != now.build) {
    remarks.push_back(fmt::format(
        "{} was written by another build ({}; this one: {}): the last bits of what follows may "
        "differ from those of a run without interruption",
        before.path, *build, now.build));
  }
  return remarks;
}

std::vector<std::string> compare_settings(const Before& before, RunConfig& now) {
  std::vector<std::string> lines;
  for (const std::string& key : differing(before, now)) lines.push_back(line_of(key, before, now));
  return lines;
}

std::vector<std::string> compare_function(const Before& before, RunConfig& now,
                                          const Settings& asked) {
  std::vector<std::string> lines, groups = now.of_task->function_keys();
  groups.insert(groups.end(), {"model.", "length"});
  for (const std::string& key : differing(before, now)) {
    const bool matters = std::any_of(groups.begin(), groups.end(),
                                     [&](const std::string& g) { return key.starts_with(g); });
    if (!matters || last_setting(asked, key) != nullptr) continue;
    lines.push_back(fmt::format("{} when {} was written", line_of(key, before, now), before.path));
  }
  return lines;
}

std::vector<std::string> other_order(const Before& before, RunConfig& now) {
  std::vector<std::string> of_rows = now.of_task->order_keys();
  of_rows.insert(of_rows.end(), {"length", "seed"});
  std::vector<std::string> keys = differing(before, now);
  std::erase_if(keys, [&](const std::string& key) {
    return std::find(of_rows.begin(), of_rows.end(), key) == of_rows.end();
  });
  return keys;
}

}  // namespace longspan
