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

/// A position table for n_max positions, from one for P of them, by repetition \cite beltagy2020 :
/// new[offset + k P + r] = old[offset + r] for every k, the last copy cut where P does not divide
/// n_max. The rows before `offset` are kept too (the authors' conversion leaves those to chance).
///   old      [offset + P, D]
///   returns  [offset + n_max, D], without history
///   throws   ShapeError where old has no row beyond offset; ValueError on n_max < 1
Tensor extended_positions(const Tensor& old, int64_t offset, int64_t n_max);

/// What position tables hold behind the positions of the model that one starts from: these again,
/// or what the table started with.
enum class NewPositions : uint8_t { repeat, keep };
template <>
inline constexpr std::array<std::string_view, 2> value_names<NewPositions>{"repeat", "keep"};

/// Makes a model with LongformerAttention out of a trained one with full attention, or a longer one
/// out of a shorter one. Every parameter of `to` gets the values of that of the same name in
/// `from`; global projections get those of the sliding ones where `from` has none, and position
/// tables are extended.
///   position_offset  rows of the tables before position 0
///   beyond           what further positions get; `keep` is for comparison \cite beltagy2020
///                    (table 5: 10.3 bits instead of 1.96 before any further training)
///   dropped_rows     first rows of a table in `from` that `to` has none of: 2 where an LED whose
///                    tables begin with position 0, as those of transformers do, starts from BART
/// Heads of an encoder for classes, tags, spans and choices that `from` lacks stay as they were
/// drawn, and their names are returned; so do the last rows of a table of tokens that has more.
/// Throws ValueError that lists what else `from` lacks, and ShapeError where shapes differ
/// otherwise; either before any parameter changes.
std::vector<std::string> start_from(Module& to, Module& from, int64_t position_offset,
                                    NewPositions beyond = NewPositions::repeat,
                                    int64_t dropped_rows = 0);

/// Makes an encoder-decoder out of a trained encoder in BERT's shape, as BigBird's base starts from
/// RoBERTa \cite zaheer2020 : encoder, decoder and tables get the values of the encoder, but for
/// cross-attention, its norms and the bias of the head, whose names are returned. Positions as in
/// start_from(), which throws as this does.
std::vector<std::string> start_from_encoder(Module& to, Module& from, int64_t position_offset);

/// Copies the sliding projections onto the global ones, which predicting masked tokens does not
/// train: before fine-tuning.
void copy_global_projections(Module& model);

}  // namespace longspan
