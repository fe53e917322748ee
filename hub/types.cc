#include <algorithm>
#include <string_view>
#include <vector>

#include "hub/type.h"

namespace longspan {

std::span<const HubType> hub_types() {
  static const std::vector<HubType> all = [] {
    std::vector<HubType> types;
    for (const std::span<const HubType> family :
         {detail::hub_encoders(), detail::hub_decoders(), detail::hub_sequences(),
          detail::hub_memories()}) {
      types.insert(types.end(), family.begin(), family.end());
    }
    std::sort(types.begin(), types.end(),
              [](const HubType& a, const HubType& b) { return a.name < b.name; });
    return types;
  }();
  return all;
}

}  // namespace longspan
