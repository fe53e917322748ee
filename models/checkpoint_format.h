#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "nn/module.h"
#include "nn/other_name.h"

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
  /// Tensors that checkpoints may contain and models here do not need: tied tensors, tables of
  /// constants, pre-training heads, names of older files.
  std::span<const OtherName> unused;
  /// Returns a parameter in the shape that such checkpoints store under this name; null: its own.
  Tensor (*stored)(std::string_view theirs, const Tensor& parameter) = nullptr;
  /// Parameters that the layers share, and the full names of copies that such checkpoints have for
  /// each layer besides.
  std::span<const NamePair> copies = {};
  /// Parameters, and the full names that they have besides in the checkpoints of a model whose head
  /// has a table of its own (head.weight).
  std::span<const NamePair> untied = {};
};

/// Returns every parameter of a model under its name in the format, parts of one tensor under the
/// same name, and one that has several names there under each. The tensors alias the model's own,
/// so reading into them (load_pretrained()) loads the model. Throws NotImplemented on a parameter
/// that has no name in the format.
TensorList named_as(const CheckpointFormat& format, Module& model);

/// Concatenates two lists of names, arrays or std::arrays.
template <class Name, size_t M, size_t N>
constexpr std::array<Name, M + N> joined(const std::array<Name, M>& a,
                                         const std::type_identity_t<Name> (&b)[N]) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<Name, M + N>{(I < M ? a[I % M] : b[(I - M) % N])...};
  }
  (std::make_index_sequence<M + N>());
}
template <class Name, size_t M, size_t N>
constexpr std::array<Name, M + N> joined(const Name (&a)[M],
                                         const std::type_identity_t<Name> (&b)[N]) {
  return joined(std::to_array(a), b);
}
template <class Name, size_t M, size_t N>
constexpr std::array<Name, M + N> joined(const Name (&a)[M], const std::array<Name, N>& b) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<Name, M + N>{(I < M ? a[I % M] : b[(I - M) % N])...};
  }
  (std::make_index_sequence<M + N>());
}

}  // namespace longspan
