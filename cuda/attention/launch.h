#pragma once

#include "cuda/attention/general.h"

namespace longspan::cuda {

/// Returns the number of blocks of a launch; throws if it exceeds the limit of a grid.
unsigned attention_grid(const char* name, int64_t blocks);

/// Whether rows of [B, H, rows, width] can be moved 16 bytes at a time: the width is a multiple of
/// 8 up to 128, and each row begins at a multiple of 16 bytes.
bool rows_fit(const ConstView& x);

/// The passes of a call: out; dq and the gradients of relation_query and query_span; dk, dv and the
/// gradient of span; the gradients of the relation tables.
enum class AttentionPass : uint8_t { forward, rows, keys, tables };

/// Whether tensor cores take a call: bf16 or f16, widths that are multiples of 8 up to 128, rows
/// that begin at multiples of 16 bytes, a positive scale.
bool tensor_serves_forward(const kernels::AttentionProblem& in, const View& out);
bool tensor_serves_backward(const kernels::AttentionProblem& in, const ConstView& dout,
                            const kernels::AttentionGradients& grads);

/// Runs a pass on tensor cores with the arguments of the general path. It selects the kernels for
/// windows and bounds, or those for all terms and masks. The latter also recompute blocks in which
/// the former met nonfinite values, see note_nonfinite().
void run_tensor(const char* name, AttentionPass pass, const kernels::AttentionProblem& in,
                const AttentionArguments<bf16>& x);
void run_tensor(const char* name, AttentionPass pass, const kernels::AttentionProblem& in,
                const AttentionArguments<f16>& x);

/// Launches the kernels for windows and bounds; there is none for the tables pass.
void launch_plain(const char* name, AttentionPass pass, const AttentionArguments<bf16>& x);
void launch_plain(const char* name, AttentionPass pass, const AttentionArguments<f16>& x);
/// Launches the kernels for all terms and masks. If `checked_units` is not 0, they recompute the
/// nonfinite blocks among that many blocks of the plain kernels.
void launch_terms(const char* name, AttentionPass pass, const AttentionArguments<bf16>& x,
                  int64_t checked_units);
void launch_terms(const char* name, AttentionPass pass, const AttentionArguments<f16>& x,
                  int64_t checked_units);

}  // namespace longspan::cuda
