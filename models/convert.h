#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "nn/fields.h"
#include "nn/module.h"

namespace longspan {

/// Extends a position table for P positions to n_max positions by repetition \cite beltagy2020 :
/// new[offset + k P + r] = old[offset + r] for every k; the last copy is cut if P does not divide
/// n_max. The rows before `offset` are copied too (the authors' conversion leaves them
/// uninitialized).
///   old      [offset + P, D]
///   returns  [offset + n_max, D], without autograd history
///   throws   ShapeError when old has no row beyond offset; ValueError on n_max < 1
Tensor extended_positions(const Tensor& old, int64_t offset, int64_t n_max);

/// What a position table holds beyond the positions of the source model: repetitions of them, or
/// its own initial values.
enum class NewPositions : uint8_t { repeat, keep };
template <>
inline constexpr std::array<std::string_view, 2> value_names<NewPositions>{"repeat", "keep"};

/// What start_from() does where two models differ.
struct StartOptions {
  /// What further positions get; `keep` is for comparison \cite beltagy2020 (table 5: 10.3 bits
  /// instead of 1.96 before any further training).
  NewPositions beyond = NewPositions::repeat;
  /// First rows of a position table in `from` that `to` does not have: 2 when an LED whose tables
  /// begin with position 0, as in transformers, starts from BART.
  int64_t dropped_rows = 0;
  /// Whether outputs for classes, tags, spans and choices keep their initial values even if `from`
  /// has some; a pooler is taken over all the same.
  bool new_heads = false;
};

/// Converts a trained model with full attention into one with LongformerAttention, or a shorter
/// model into a longer one. Copies to every parameter and buffer of `to` the one of the same name
/// in `from`. Global projections get the sliding ones if `from` has no global ones, and position
/// tables are extended.
///   position_offset  rows of the tables before position 0
/// The last rows of a token table that is longer than in `from` keep their initial values, and so
/// do buffers and encoder heads for classes, tags, spans and choices that `from` lacks; their names
/// are returned. Throws ValueError that names what else `from` lacks, and
/// ShapeError on other differences of shape, both before any parameter changes.
std::vector<std::string> start_from(Module& to, Module& from, int64_t position_offset,
                                    const StartOptions& options = {});

/// Converts a trained encoder in BERT's shape into an encoder-decoder, as BigBird's base model
/// starts from RoBERTa \cite zaheer2020 : encoder, decoder and tables get the values of the
/// encoder. The exceptions are cross-attention, its norms and the bias of the head; their names are
/// returned. Treats positions and throws as start_from() does.
std::vector<std::string> start_from_encoder(Module& to, Module& from, int64_t position_offset);

/// Initializes an ETC from an encoder in BERT's shape: copies its projections to every piece and
/// side, its feed-forward networks, norms, tokens and head, and its first token type to all types.
/// Drops positions. Returns the names of the parameters that keep their values: relation tables,
/// contrastive prediction, positions, projections between widths, and the token types if the
/// encoder has none. Throws ShapeError that names both when shapes differ, and ValueError
/// when the source lacks a parameter.
std::vector<std::string> lift(const TensorList& encoder, Module& model);

/// Copies the sliding projections to the global ones, which masked language modelling does not
/// train. Call it before fine-tuning.
void copy_global_projections(Module& model);

}  // namespace longspan
