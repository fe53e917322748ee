#include "nn/layer_memory.h"

#include <algorithm>
#include <string_view>
#include <typeinfo>

namespace longspan {

void LayerMemory::put(std::shared_ptr<const Any> state) {
  const auto name = [](const std::shared_ptr<const Any>& s) {
    const Any& any = *s;
    return std::string_view(typeid(any).name());
  };
  const auto at = std::find_if(states_.begin(), states_.end(),
                               [&](const auto& s) { return name(s) >= name(state); });
  if (at != states_.end() && name(*at) == name(state)) {
    *at = std::move(state);
  } else {
    states_.insert(at, std::move(state));
  }
}

void LayerMemory::visit(const StateVisitor& f) {
  for (auto& s : states_) {
    const std::shared_ptr<Any> own = s->copy();  // other memories share s
    own->visit([&](const StateTensor& t) {
      if (t.x) f(t);
    });
    s = own;
  }
}

Tensor in_memory(Tensor x) {
  x.set_category(Category::memory);
  return x;
}

}  // namespace longspan
