// hub_cases FOLDER...: holds folders of the package transformers, with expected.safetensors as
// tests/oracles/hub_folders.py writes it, against what it computes of them. A file case.json may
// say that a folder is refused: {"verdict": "refuse", "refuse_by": [names that the message has]},
// or that either is right. Prints a line for each folder; exits with 1 if one fails.

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <string>

#include "core/error.h"
#include "data/io/files.h"
#include "tests/hub/hub_case.h"

namespace longspan {
namespace {

/// Returns what is wrong with a folder; empty: nothing.
std::string judge(const std::string& path) {
  std::string verdict = "honour";
  Json record;
  if (std::filesystem::exists(path + "/case.json")) {
    record = parse_json(read_file(path + "/case.json", "hub_cases"), 32);
    verdict = record["verdict"].string();
  }
  try {
    const std::string fault = test::fault_of_hub_folder(path);
    return verdict == "refuse" ? " it was read; expected a refusal" : fault;
  } catch (const Error& error) {
    const std::string text = error.what();
    if (verdict == "honour") return " " + text;
    const Json* names = record.find("refuse_by");
    for (size_t i = 0; names != nullptr && names->is_array() && i < names->array().size(); ++i) {
      const std::string& name = names->array()[i].string();
      if (text.find(name) == std::string::npos) {
        return fmt::format(" the refusal does not name {}: {}", name, text);
      }
    }
    return {};
  }
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  int bad = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string faults = longspan::judge(argv[i]);
    bad += faults.empty() ? 0 : 1;
    std::cout << (faults.empty() ? "ok   " : "FAIL ") << argv[i] << faults << std::endl;
  }
  std::cout << argc - 1 - bad << " passed, " << bad << " failed\n";
  return bad == 0 ? 0 : 1;
}
