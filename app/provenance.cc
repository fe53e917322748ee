#include "app/provenance.h"

#include <fmt/format.h>

#include <filesystem>

#include "app/run.h"
#include "core/build.h"
#include "core/error.h"
#include "data/data_sets.h"

namespace longspan {
namespace {

Fingerprint data_fingerprint(const RunConfig& config) {
  const DataSet& set = find_data_set(config.task);
  if (is_generated(set.kind)) return {};
  std::vector<std::string> paths;
  for (const FoundFile& found : find_files(set, data_place(config))) {
    if (std::filesystem::is_regular_file(found.path)) paths.push_back(found.path);
  }
  return fingerprint_of(paths);
}

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
  return {.data = data_fingerprint(config),
          .tokens = identity_of_tokens(config),
          .processor = processor_of(config),
          .build = build_description()};
}

std::vector<std::string> compare_provenance(const Json& values, const Provenance& now,
                                            const std::string& checkpoint, bool allowed) {
  std::vector<std::string> remarks;
  if (const Json* data = values.find("data")) {
    const Fingerprint before{(*data)["bytes"].integer(), (*data)["xxh3"].string()};
    const std::string& tokens = (*data)["tokens"].string();
    if (!(before == now.data)) {
      const std::string what = fmt::format(
          "the data are others than those that {} was trained on: {} bytes with checksum {}, and "
          "there {} with {}",
          checkpoint, now.data.bytes, now.data.xxh3, before.bytes, before.xxh3);
      require(allowed, "--resume", "{}; expected the same, or --other-data to go on with these",
              what);
      remarks.push_back(what);
    }
    require(allowed || tokens == now.tokens, "--resume",
            "the tokens are {}, and those of {} {}; expected the same, or --other-data to go on "
            "with these",
            now.tokens, checkpoint, tokens);
  }
  const std::string* processor = text_of(values, "processor");
  if (processor != nullptr && *processor != now.processor) {
    remarks.push_back(
        fmt::format("{} was written with the instructions {}, and this process uses {}: the last "
                    "bits of what follows may differ from those of a run without interruption",
                    checkpoint, *processor, now.processor));
  }
  const std::string* build = text_of(values, "build");
  if (build != nullptr && *build != now.build) {
    remarks.push_back(fmt::format(
        "{} was written by another build ({}; this one: {}): the last bits of what follows may "
        "differ from those of a run without interruption",
        checkpoint, *build, now.build));
  }
  return remarks;
}

}  // namespace longspan
