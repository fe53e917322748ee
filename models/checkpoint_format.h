#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "nn/module.h"

namespace longspan {

/// The name of a parameter here and in another implementation, without ".weight" and ".bias"; "#"
/// stands for the index of a layer. A name that includes such an ending stands for that parameter
/// only. Parameters that get the same name there are the parts of one tensor, stacked along its
/// first axis in the order in which the model names them.
struct NamePair {
  std::string_view ours, theirs;
};

/// How another implementation names the parameters of an architecture in its checkpoints. Matrices
/// are stored there in the same layout as here.
struct CheckpointFormat {
  std::string_view model_type;  ///< "roberta": the value of this key in config.json
  /// The prefix of the names of the model without its heads, e.g. "roberta."; checkpoints without
  /// heads lack it.
  std::string_view prefix;
  std::span<const NamePair> base, heads;
  /// Endings of the names of tensors that checkpoints may contain and models here do not need: tied
  /// tensors, tables of constants, pre-training heads.
  std::span<const std::string_view> unused;
  /// Returns a parameter in the shape that such checkpoints store under this name; null: its own.
  Tensor (*stored)(std::string_view theirs, const Tensor& parameter) = nullptr;
  /// Parameters that the layers share, and the full names of copies that such checkpoints have for
  /// each layer besides.
  std::span<const NamePair> copies = {};
};

/// Returns every parameter of a model under its name in the format, parts of one tensor under the
/// same name. The tensors alias the model's own, so reading into them (load_pretrained()) loads the
/// model. Throws NotImplemented on a parameter that has no name in the format.
TensorList named_as(const CheckpointFormat& format, Module& model);

/// Concatenates two lists of names.
template <size_t M, size_t N>
constexpr std::array<NamePair, M + N> joined(const NamePair (&a)[M], const NamePair (&b)[N]) {
  std::array<NamePair, M + N> all;
  std::copy(std::begin(a), std::end(a), all.begin());
  std::copy(std::begin(b), std::end(b), all.begin() + M);
  return all;
}

}  // namespace longspan
