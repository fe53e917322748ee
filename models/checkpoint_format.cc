#include "models/checkpoint_format.h"

#include <cctype>

namespace longspan {
namespace {

constexpr const char* kOp = "checkpoint";

/// Splits "layers.3.attention.q.weight" into "layers.#.attention.q", "3" and ".weight".
struct SplitName {
  std::string stem, number, kind;
};

SplitName split(const std::string& name) {
  const size_t dot = name.rfind('.');
  SplitName s{name.substr(0, dot), "", name.substr(dot)};
  for (size_t i = 0; i < s.stem.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(s.stem[i])) == 0 || i == 0 ||
        s.stem[i - 1] != '.') {
      continue;
    }
    const size_t end = std::min(s.stem.find('.', i), s.stem.size());
    s.number = s.stem.substr(i, end - i);
    s.stem.replace(i, end - i, "#");
    break;
  }
  return s;
}

const NamePair* find(std::span<const NamePair> names, std::string_view ours) {
  for (const NamePair& pair : names) {
    if (pair.ours == ours) return &pair;
  }
  return nullptr;
}

std::string theirs(const CheckpointFormat& format, const std::string& ours) {
  if (const NamePair* whole = find(format.heads, ours)) return std::string(whole->theirs);
  const SplitName s = split(ours);
  const NamePair* base = find(format.base, s.stem);
  const NamePair* pair = base != nullptr ? base : find(format.heads, s.stem);
  require<NotImplemented>(pair != nullptr, kOp, "checkpoints of {} have no name for {}",
                          format.model_type, ours);
  std::string name(pair->theirs);
  if (const size_t place = name.find('#'); place != std::string::npos) {
    name.replace(place, 1, s.number);
  }
  return (base != nullptr ? std::string(format.prefix) : std::string()) + name + s.kind;
}

}  // namespace

TensorList named_as(const CheckpointFormat& format, Module& model) {
  TensorList list = named_parameters(model);
  for (NamedTensor& p : list) {
    p.name = theirs(format, p.name);
    if (format.stored != nullptr) p.tensor = format.stored(p.name, p.tensor);
  }
  return list;
}

}  // namespace longspan
