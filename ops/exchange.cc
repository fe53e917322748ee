#include "ops/exchange.h"

#include <vector>

#include "autograd/mode.h"
#include "autograd/record.h"
#include "core/error.h"
#include "core/kernels/copy.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Messages of runs of tensors, which have no data on the meta device.
class Messages {
 public:
  Messages(const SequenceSplit& split, Device device) : split_(split), device_(device) {}

  /// x is contiguous, and its rows lie along the first axis.
  void send(int to, const Tensor& x, int64_t first, int64_t count) {
    const auto [at, bytes] = place(x, first, count);
    const auto* const data = static_cast<const char*>(x.view().data);
    if (bytes > 0) out_.push_back({to, data == nullptr ? data : data + at, bytes});
  }
  void receive(int from, Tensor& x, int64_t first, int64_t count) {
    const auto [at, bytes] = place(x, first, count);
    auto* const data = static_cast<char*>(x.mut().data);
    if (bytes > 0) in_.push_back({from, data == nullptr ? data : data + at, bytes});
  }
  void exchange(const char* what) {
    auto pending = split_.group().start(out_, in_, what, device_);
    split_.group().wait(pending);
  }

 private:
  std::pair<int64_t, int64_t> place(const Tensor& x, int64_t first, int64_t count) const {
    if (x.dim(0) == 0) return {0, 0};
    const auto row = x.nbytes() / x.dim(0);
    return {first * row, count * row};
  }

  const SequenceSplit& split_;
  Device device_;
  std::vector<Communicator::Send> out_;
  std::vector<Communicator::Receive> in_;
};

void check(const char* op, const Tensor& x, int rank, const SequenceSplit& split, int64_t rows,
           int axis) {
  if (x.rank() != rank || x.dim(0) != 1) {
    fail_with<ShapeError>(op, "one sample at a time is split; use accumulate for more", {{"x", x}});
  }
  const int64_t own = axis < 0 ? rows : split.rows(rows).count;
  if (axis >= 0 && x.dim(axis) != own) {
    fail_with<ShapeError>(op, fmt::format("this process has {} of {} rows", own, rows), {{"x", x}});
  }
}

/// [1, H, n, d] -> [1, H / S, rows, d].
Tensor to_heads(const Tensor& x, const SequenceSplit& split, int64_t rows) {
  const NoGrad off;
  const int size = split.size(), me = split.index();
  const int64_t heads = split.heads(x.dim(1), "rows_to_heads").count, d = x.dim(3);
  // What goes to one process lies together.
  const Tensor parts =
      contiguous(transpose(unflatten(select(x, 0, 0), 0, size, heads), 1, 2));  // [S, n, h, d]
  Tensor y = Tensor::empty({rows, heads, d}, x.dtype(), x.device());
  Messages messages(split, x.device());
  for (int r = 0; r < size; ++r) {
    const auto [first, count] = split.rows(rows, r);
    if (r == me) {
      Tensor own = narrow(y, 0, first, count);
      if (own.numel() > 0) kernels::copy(y.device(), select(parts, 0, r).view(), own.mut());
      continue;
    }
    messages.send(r, parts, r, 1);
    messages.receive(r, y, first, count);
  }
  messages.exchange("rows of heads");
  return unsqueeze(transpose(y, 0, 1), 0);
}

/// [1, H / S, rows, d] -> [1, H, n, d].
Tensor to_rows(const Tensor& x, const SequenceSplit& split) {
  const NoGrad off;
  const int size = split.size(), me = split.index();
  const int64_t heads = x.dim(1), rows = x.dim(2), d = x.dim(3);
  const Tensor all = contiguous(transpose(select(x, 0, 0), 0, 1));  // [rows, h, d]
  const int64_t n = split.rows(rows).count;
  Tensor parts = Tensor::empty({size, n, heads, d}, x.dtype(), x.device());
  Messages messages(split, x.device());
  for (int r = 0; r < size; ++r) {
    const auto [first, count] = split.rows(rows, r);
    if (r == me) {
      Tensor own = select(parts, 0, r);
      if (own.numel() > 0)
        kernels::copy(x.device(), narrow(all, 0, first, count).view(), own.mut());
      continue;
    }
    messages.send(r, all, first, count);
    messages.receive(r, parts, r, 1);
  }
  messages.exchange("heads of rows");
  const Tensor y = flatten(contiguous(transpose(parts, 0, 1)), 1, 2);  // [n, H, d]
  return unsqueeze(transpose(y, 0, 1), 0);
}

/// [1, n, D] -> [1, rows, D].
Tensor gathered(const Tensor& x, const SequenceSplit& split, int64_t rows) {
  const NoGrad off;
  const Tensor own = contiguous(select(x, 0, 0));  // [n, D]
  Tensor y = Tensor::empty({rows, x.dim(2)}, x.dtype(), x.device());
  Messages messages(split, x.device());
  for (int r = 0; r < split.size(); ++r) {
    const auto [first, count] = split.rows(rows, r);
    if (r == split.index()) {
      Tensor here = narrow(y, 0, first, count);
      if (own.numel() > 0) kernels::copy(y.device(), own.view(), here.mut());
      continue;
    }
    messages.send(r, own, 0, own.dim(0));
    messages.receive(r, y, first, count);
  }
  messages.exchange("rows of all processes");
  return unsqueeze(y, 0);
}

/// [1, rows, D] -> [1, n, D]: the sum over processes of their gradients of this one's rows.
Tensor summed(const Tensor& dy, const SequenceSplit& split) {
  const Tensor all = contiguous(select(dy, 0, 0));  // [rows, D]
  const auto [begin, n] = split.rows(all.dim(0));
  Tensor parts = Tensor::empty({split.size(), n, all.dim(1)}, dy.dtype(), dy.device());
  Messages messages(split, dy.device());
  for (int r = 0; r < split.size(); ++r) {
    const auto [first, count] = split.rows(all.dim(0), r);
    if (r == split.index()) {
      Tensor own = select(parts, 0, r);
      if (own.numel() > 0) kernels::copy(dy.device(), narrow(all, 0, begin, n).view(), own.mut());
      continue;
    }
    messages.send(r, all, first, count);
    messages.receive(r, parts, r, 1);
  }
  messages.exchange("gradients of rows");
  Tensor sum = select(parts, 0, 0);
  for (int r = 1; r < split.size(); ++r) sum = add(sum, select(parts, 0, r));
  return unsqueeze(sum, 0);
}

}  // namespace

Tensor rows_to_heads(const Tensor& x, const SequenceSplit& split, int64_t rows) {
  constexpr const char* op = "rows_to_heads";
  check(op, x, 4, split, rows, 2);
  const auto by = &split;
  return record(op, {x}, to_heads(x, split, rows), {},
                [by](const Context&, const Tensor& dy) { return Grads{heads_to_rows(dy, *by)}; });
}

Tensor heads_to_rows(const Tensor& x, const SequenceSplit& split) {
  constexpr const char* op = "heads_to_rows";
  check(op, x, 4, split, x.rank() == 4 ? x.dim(2) : 0, -1);
  const auto by = &split;
  const int64_t rows = x.dim(2);
  return record(op, {x}, to_rows(x, split), {}, [by, rows](const Context&, const Tensor& dy) {
    return Grads{rows_to_heads(dy, *by, rows)};
  });
}

Tensor rows_of_all(const Tensor& x, const SequenceSplit& split, int64_t rows) {
  constexpr const char* op = "rows_of_all";
  check(op, x, 3, split, rows, 1);
  const auto by = &split;
  return record(op, {x}, gathered(x, split, rows), {},
                [by](const Context&, const Tensor& dy) { return Grads{summed(dy, *by)}; });
}

}  // namespace longspan
