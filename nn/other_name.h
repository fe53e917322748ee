#pragma once

#include <cstdint>
#include <string_view>

namespace longspan {

/// The name of a tensor that a file of another implementation may contain although no parameter has
/// this name, and what its values are held against before it is passed over. Names lack the prefix
/// of their format.
struct OtherName {
  enum class Kind : uint8_t {
    unused,       ///< a head or a pooler that the model does not have
    copy,         ///< the same values as `of`, which may be missing beside it
    instead,      ///< read where `of` is missing; of no meaning beside it
    ordinals,     ///< 0, 1, 2, ...
    frequencies,  ///< 10000^(-2 i / d), with d / 2 elements
    sinusoids     ///< sines of the positions, then cosines: SinusoidLayout::halves
  };

  constexpr OtherName(std::string_view name_, Kind kind_ = Kind::unused, std::string_view of_ = {},
                      std::string_view remedy_ = {})
      : name(name_), kind(kind_), of(of_), remedy(remedy_) {}
  constexpr OtherName(const char* name_) : OtherName(std::string_view(name_)) {}

  std::string_view name;
  Kind kind;
  std::string_view of;      ///< the other tensor
  std::string_view remedy;  ///< of a copy with other values: what to do about it
};

}  // namespace longspan
