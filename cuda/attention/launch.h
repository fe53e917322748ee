#pragma once

#include "cuda/attention/general.h"

namespace longspan::cuda {

/// The number of blocks of a launch; throws where it does not fit one.
unsigned attention_grid(const char* name, int64_t blocks);

/// Whether rows of [B, H, rows, width] can be moved 16 bytes at a time: multiples of 8 columns, up
/// to 128, that begin at multiples of 16 bytes.
bool rows_fit(const ConstView& x);

/// What a call is made of: out; dq and the gradient of relation_query; dk, dv and the gradient of a
/// span; the gradients of relation tables.
enum class AttentionPass : uint8_t { forward, rows, keys, tables };

/// Whether a call goes to tensor cores: bf16 or f16, widths that are multiples of 8 up to 128, rows
/// that begin at multiples of 16 bytes, a positive scale.
bool tensor_serves_forward(const kernels::AttentionInputs& in, const View& out);
bool tensor_serves_backward(const kernels::AttentionInputs& in, const ConstView& dout,
                            const kernels::AttentionGradients& grads);

/// A pass of such a call, from the arguments that the general path is given. What is asked for
/// decides between kernels that know windows and bounds and those that know all; the latter also
/// repair what the former cannot contain, see note_nonfinite().
void run_tensor(const char* name, AttentionPass pass, const kernels::AttentionInputs& in,
                const AttentionArguments<bf16>& x);
void run_tensor(const char* name, AttentionPass pass, const kernels::AttentionInputs& in,
                const AttentionArguments<f16>& x);

/// The kernels for windows and bounds; there is none for tables.
void launch_plain(const char* name, AttentionPass pass, const AttentionArguments<bf16>& x);
void launch_plain(const char* name, AttentionPass pass, const AttentionArguments<f16>& x);
/// The kernels for everything. Where `checked_units` is not 0 they look for what was nonfinite
/// among so many blocks of the plain ones.
void launch_terms(const char* name, AttentionPass pass, const AttentionArguments<bf16>& x,
                  int64_t checked_units);
void launch_terms(const char* name, AttentionPass pass, const AttentionArguments<f16>& x,
                  int64_t checked_units);

}  // namespace longspan::cuda
