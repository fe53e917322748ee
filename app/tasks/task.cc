#include "app/tasks/task.h"

#include <algorithm>

namespace longspan {

Tensor synthetic_ids(int64_t rows, int64_t length, int64_t vocab, Device device) {
  if (device == meta_device) {
    return Tensor::empty({rows, length}, DType::i32, device, Category::data);
  }
  std::vector<int32_t> ids(static_cast<size_t>(rows * length));
  const auto some = static_cast<size_t>(std::min<int64_t>(13, vocab));
  const size_t first = std::min<size_t>(5, static_cast<size_t>(vocab) - some);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % some + first);
  Tensor x = Tensor::from(ids, {rows, length}, device);
  x.set_category(Category::data);
  return x;
}

std::string Task::symbols(std::string_view /*tokenizer*/) const {
  return takes_tokenizer() ? "bytes" : std::string(unit_of(set_.kind)) + "s";
}

std::string Task::tokenizer(std::string_view given) const {
  return given == "bytes" ? "" : std::string(given);
}

std::unique_ptr<const Tokenizer> Task::text_tokenizer(std::string_view /*given*/) const {
  return nullptr;
}

int64_t Task::longest_sample(int64_t length, const LanguageModel& /*model*/) const {
  return length;
}

}  // namespace longspan
