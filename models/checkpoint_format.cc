#include "models/checkpoint_format.h"

#include <algorithm>
#include <cctype>

namespace longspan {
namespace {

constexpr const char* kCheckpoint = "checkpoint";

/// Splits "layers.3.attention.q.weight" into "layers.#.attention.q", "3" and ".weight", and "u"
/// into itself and nothing.
struct SplitName {
  std::string stem, number, kind;
};

SplitName split(const std::string& name) {
  const size_t dot = std::min(name.rfind('.'), name.size());
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

/// Returns the name with the number in the place of "#", if it has one.
std::string numbered(std::string_view theirs, const std::string& number) {
  std::string name(theirs);
  if (const size_t place = name.find('#'); place != std::string::npos) {
    name.replace(place, 1, number);
  }
  return name;
}

std::string theirs(const CheckpointFormat& format, const std::string& ours) {
  if (const NamePair* whole = find(format.heads, ours)) return std::string(whole->theirs);
  const SplitName s = split(ours);
  // A pair for this parameter alone comes before one for all parameters of its module.
  for (const bool alone : {true, false}) {
    const std::string wanted = alone ? s.stem + s.kind : s.stem;
    for (const bool base : {true, false}) {
      const NamePair* pair = find(base ? format.base : format.heads, wanted);
      if (pair == nullptr) continue;
      return (base ? std::string(format.prefix) : std::string()) +
             numbered(pair->theirs, s.number) + (alone ? "" : s.kind);
    }
  }
  fail<NotImplemented>(kCheckpoint, "checkpoints of {} have no name for {}", format.model_type,
                       ours);
}

/// Returns the copies that a model with these parameters has: of each layer, and of an untied head.
TensorList copies(const CheckpointFormat& format, const TensorList& parameters) {
  TensorList list;
  const auto find = [&](std::string_view name) {
    return std::find_if(parameters.begin(), parameters.end(),
                        [&](const NamedTensor& p) { return p.name == name; });
  };
  const bool untied = find("head.weight") != parameters.end();
  for (const NamePair& pair : format.untied) {
    const auto other = find(pair.ours);
    if (untied && other != parameters.end()) {
      list.push_back({std::string(pair.theirs), other->tensor});
    }
  }
  for (const NamePair& pair : format.copies) {
    const auto shared = find(pair.ours);
    if (shared == parameters.end()) continue;
    std::string last;
    for (const NamedTensor& p : parameters) {
      if (!p.name.starts_with("layers.")) continue;
      const std::string layer = split(p.name).number;
      if (layer != last) list.push_back({numbered(pair.theirs, layer), shared->tensor});
      last = layer;
    }
  }
  return list;
}

}  // namespace

TensorList named_as(const CheckpointFormat& format, Module& model) {
  TensorList list = named_parameters(model);
  const TensorList more = copies(format, list);
  for (NamedTensor& p : list) {
    p.name = theirs(format, p.name);
    if (format.stored != nullptr) p.tensor = format.stored(p.name, p.tensor);
  }
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

}  // namespace longspan
