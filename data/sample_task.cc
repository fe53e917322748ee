#include "data/sample_task.h"

#include <algorithm>

#include "core/error.h"

namespace longspan {

Draws draws_of(std::string_view task, const SampleKey& key) {
  return Draws(Generator{key.seed}.fork(task).fork(key.split).fork(key.index));
}

Batch stack(std::span<const Sample> samples, Device device) {
  require<ShapeError>(!samples.empty(), "stack", "got no samples");
  const size_t length = samples[0].tokens.size();
  std::vector<int32_t> tokens, targets;
  for (const Sample& s : samples) {
    require<ShapeError>(s.tokens.size() == length && s.targets.size() == length, "stack",
                        "got samples of {} and {} tokens; expected one length", length,
                        s.tokens.size());
    tokens.insert(tokens.end(), s.tokens.begin(), s.tokens.end());
    targets.insert(targets.end(), s.targets.begin(), s.targets.end());
  }
  const auto rows = static_cast<int64_t>(samples.size()), columns = static_cast<int64_t>(length);
  return {Tensor::from(tokens, {rows, columns}, device),
          Tensor::from(targets, {rows, columns}, device)};
}

Batch stack_segment(std::span<const Sample> samples, int64_t segment, int64_t length,
                    Device device) {
  std::vector<Sample> parts;
  for (const Sample& s : samples) {
    const int64_t begin = std::min(segment * length, std::ssize(s.tokens));
    const int64_t end = std::min(begin + length, std::ssize(s.tokens));
    const auto part = [&](const std::vector<int32_t>& x) {
      return std::vector<int32_t>(x.begin() + begin, x.begin() + end);
    };
    parts.push_back({part(s.tokens), part(s.targets)});
  }
  return stack(parts, device);
}

}  // namespace longspan
