#include "models/model_spec.h"

#include "core/error.h"
#include "core/memory.h"

namespace longspan {

int64_t ModelSpec::parameters() const {
  const std::unique_ptr<LanguageModel> model = make(Init{.meta = true});
  return parameter_count(*model);
}

std::unique_ptr<LanguageModel> ModelSpec::build(const Init& init) const {
  return with_memory_for("model", [&] {
    const int64_t limit = memory_limit(init.device);
    if (!init.meta && limit > 0) {
      const int64_t count = parameters();
      const int64_t size = size_of(init.dtype);
      require<OutOfMemory>(count <= limit / size, "model",
                           "it has {} parameters, of {} bytes each, and {} has {} bytes in all; "
                           "choose a smaller one: fewer layers, or narrower",
                           count, size, name_of(init.device), limit);
    }
    const InitWatch made;
    std::unique_ptr<LanguageModel> model = make(init);
    made.require_visited(*model);
    return model;
  });
}

}  // namespace longspan
