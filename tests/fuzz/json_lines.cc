// Any bytes as JSON lines: rows of metrics, of which damaged lines are skipped, and questions of
// MRQA.

#include "data/questions.h"
#include "tests/fuzz/input.h"
#include "train/log.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("json_lines");
  prepare();
  const std::string_view text = text_of(data, size);
  file.set(text);
  std::string written;
  const std::vector<Json> rows = read_rows(file.path);
  for (const Json& row : rows) {
    check(row.is_object());
    written += to_string(row) + "\n";
    if (row.find("total") != nullptr) refuses([&] { to_usage(row); });
  }
  file.set(written);
  check(read_rows(file.path).size() == rows.size());
  refuses([&] {
    for (const Question& q : read_mrqa(text, "input")) {
      for (const Answer& answer : q.answers) {
        check(q.context.compare(static_cast<size_t>(answer.begin), answer.text.size(),
                                answer.text) == 0);
      }
    }
  });
  return 0;
}
