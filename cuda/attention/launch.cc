#include "cuda/attention/launch.h"

#include "core/error.h"
#include "core/memory.h"
#include "cuda/attention/tensor.cuh"

namespace longspan::cuda {
namespace {

bool tensor_serves(const kernels::AttentionProblem& in) {
  bool serves = size_of(in.inputs.q.dtype) == 2 && in.numbers.scale > 0 && rows_fit(in.inputs.q);
  for (int s = 0; s < in.numbers.segments; ++s) {
    serves = serves && rows_fit(in.inputs.k[s]) && rows_fit(in.inputs.v[s]);
  }
  if (in.inputs.relation_query) serves = serves && rows_fit(in.inputs.relation_query);
  for (const ConstView* table : {&in.inputs.relation_key, &in.inputs.relation_value}) {
    serves = serves && (!*table || reinterpret_cast<uintptr_t>(table->data) % 16 == 0);
  }
  return serves;
}

template <class T>
void run(const char* name, AttentionPass pass, const kernels::AttentionProblem& in,
         AttentionArguments<T> x) {
  if (!plain_terms(in)) return launch_terms(name, pass, x, 0);
  const LayoutTables& layout = x.sizes.layout;
  const int64_t blocks =
      units_of(x.sizes, pass == AttentionPass::keys ? layout.column_work : layout.row_work);
  const Scratch nonfinite(max<int64_t>(blocks, 1) * static_cast<int64_t>(sizeof(int32_t)),
                          in.inputs.q.device);
  x.nonfinite = nonfinite.as<int32_t>();
  launch_plain(name, pass, x);
  launch_terms(name, pass, x, blocks);
}

}  // namespace

unsigned attention_grid(const char* name, int64_t blocks) {
  require(blocks <= INT32_MAX, name, "{} blocks of threads do not fit a launch", blocks);
  return static_cast<unsigned>(blocks);
}

bool rows_fit(const ConstView& x) {
  bool fits = x.dim(3) % 8 == 0 && x.dim(3) <= 128 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) fits = fits && (x.dim(axis) == 1 || x.stride(axis) % 8 == 0);
  return fits;
}

bool tensor_serves_forward(const kernels::AttentionProblem& in, const View& out) {
  return tensor_serves(in) && rows_fit(out);
}

bool tensor_serves_backward(const kernels::AttentionProblem& in, const ConstView& dout,
                            const kernels::AttentionGradients& grads) {
  bool serves = tensor_serves(in) && rows_fit(dout);
  for (const View* g :
       {&grads.q, &grads.k[0], &grads.v[0], &grads.k[1], &grads.v[1], &grads.relation_query}) {
    serves = serves && (!*g || rows_fit(*g));
  }
  return serves;
}

void run_tensor(const char* name, AttentionPass pass, const kernels::AttentionProblem& in,
                const AttentionArguments<bf16>& x) {
  run(name, pass, in, x);
}
void run_tensor(const char* name, AttentionPass pass, const kernels::AttentionProblem& in,
                const AttentionArguments<f16>& x) {
  run(name, pass, in, x);
}

}  // namespace longspan::cuda
