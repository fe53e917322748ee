#include "data/sample_task.h"

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

}  // namespace longspan
