#include "train/owned_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "autograd/engine.h"
#include "autograd/leaf_watch.h"
#include "autograd/node.h"
#include "core/error.h"
#include "core/kernels/gradient.h"
#include "core/memory.h"
#include "core/ranks/packed.h"
#include "ops/copy.h"
#include "ops/optim.h"

namespace longspan {
namespace {

constexpr int64_t kPiece = 32'768;    // elements: the pieces of squared_sums()
constexpr int64_t kBucket = 1 << 20;  // bytes
constexpr size_t kUnderWay = 4;       // buckets
constexpr const char* kRanks = "ranks";

const char* data_of(const Tensor& x) { return static_cast<const char*>(x.view().data); }
char* data_of_written(Tensor& x) { return static_cast<char*>(x.mut().data); }

/// Elements of a row-major tensor as a vector.
Tensor elements(const Tensor& x, int64_t begin, int64_t count) {
  return x.detach().alias({count}, Strides{1}, begin);
}

/// A whole tensor or a part, as another rank describes it.
struct Described {
  std::string name;
  DType dtype;
  Shape shape;
};

std::string description_of(const TensorList& parts) {
  Packer p;
  for (const NamedTensor& part : parts) {
    p.put(part.name);
    p.put(part.tensor.dtype());
    p.put(part.tensor.shape());
  }
  return p.taken();
}

std::vector<Described> described(const std::string& bytes) {
  std::vector<Described> all;
  for (Unpacker u(bytes); !u.empty();) {
    std::string name = u.text();
    const auto dtype = u.value<DType>();
    all.push_back({std::move(name), dtype, u.shape()});
  }
  return all;
}

}  // namespace

std::vector<ParameterGroup> OwnedParameters::divide(const std::vector<ParameterGroup>& groups,
                                                    bool divisible) {
  require(together_ >= 1 && ranks_.size() % together_ == 0, kRanks,
          "{} ranks cannot be divided into groups of {}", ranks_.size(), together_);
  parameters_.clear();
  parts_.clear();
  for (const ParameterGroup& group : groups) {
    for (const NamedTensor& p : group.parameters) {
      require(p.tensor.contiguous(), kRanks, "the parameter \"{}\" is not contiguous", p.name);
      if (parameters_.empty()) device_ = p.tensor.device();
      require(p.tensor.device() == device_, kRanks, "the parameter \"{}\" is on {}, others on {}",
              p.name, name_of(p.tensor.device()), name_of(device_));
      parameters_.push_back(p);
      if (std::find(clip_groups_.begin(), clip_groups_.end(), p.clip_group) == clip_groups_.end()) {
        clip_groups_.push_back(p.clip_group);
      }
    }
  }
  deal(divisible);
  std::vector<ParameterGroup> own = groups;
  size_t i = 0;
  for (ParameterGroup& group : own) {
    for (NamedTensor& p : group.parameters) {
      const int64_t n = count(i, ranks_.rank());
      Part& part = parts_[i++];
      const bool whole = !divisible && n == p.tensor.numel();
      const auto begin = part.begins[static_cast<size_t>(ranks_.rank())];
      part.own = whole ? p.tensor.detach() : elements(p.tensor, n > 0 ? begin : 0, n);
      set_requires_grad(part.own);
      p.tensor = part.own;
    }
  }
  return own;
}

void OwnedParameters::deal(bool divisible) {
  divisible_ = divisible;
  const auto size = static_cast<size_t>(ranks_.size());
  int64_t all = 0;
  for (const NamedTensor& p : parameters_) all += p.tensor.numel();
  parts_.resize(parameters_.size());
  if (!divisible) {
    // The largest first, each to the rank with the least.
    std::vector<size_t> order(parameters_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return parameters_[a].tensor.numel() > parameters_[b].tensor.numel();
    });
    std::vector<int64_t> loads(size);
    for (const size_t i : order) {
      const auto least = std::min_element(loads.begin(), loads.end());
      const int64_t n = parameters_[i].tensor.numel();
      *least += n;
      const auto owner = static_cast<size_t>(least - loads.begin());
      parts_[i].begins.assign(size + 1, n);
      std::fill_n(parts_[i].begins.begin(), owner + 1, 0);
    }
    return;
  }
  int64_t before = 0;  // elements of the parameters before
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int64_t n = parameters_[i].tensor.numel();
    std::vector<int64_t>& begins = parts_[i].begins;
    begins.assign(size + 1, n);
    for (size_t r = 0; r < size; ++r) {
      // Where rank r begins among all elements, at the next border of a piece.
      const auto first = static_cast<int64_t>(static_cast<double>(all) * static_cast<double>(r) /
                                              static_cast<double>(size));
      const int64_t inside = std::clamp<int64_t>(first - before, 0, n);
      begins[r] = std::min((inside + kPiece - 1) / kPiece * kPiece, n);
    }
    begins[0] = 0;
    before += n;
  }
}

int64_t OwnedParameters::count(size_t parameter, int rank) const {
  const std::vector<int64_t>& begins = parts_[parameter].begins;
  const auto r = static_cast<size_t>(rank);
  return begins[r + 1] - begins[r];
}

void OwnedParameters::begin(int64_t batches) {
  require(batches % groups() == 0, kRanks,
          "got {} batches for {} ranks, {} of which compute one; expected as many for each",
          batches, ranks_.size(), together_);
  batches_ = batches;
  next_ = 0;
  sums_.emplace(parts_.size(), batches, GradientFold::default_group);
  for (size_t i = 0; i < parts_.size(); ++i) {
    sums_->wait(i, grad(parts_[i].own));
    set_grad(parts_[i].own, {});
  }
}

void OwnedParameters::make_buckets() {
  // All ranks send in one order, whatever their own graphs look like.
  Packer mine;
  for (const size_t i : order_) mine.put(i);
  const std::string first = ranks_.from_first(mine.taken(), "the order of gradients");
  order_.clear();
  for (Unpacker u(first); !u.empty();) order_.push_back(u.value<size_t>());
  int64_t all = 0, bytes = 0;
  for (const NamedTensor& p : parameters_) all += p.tensor.nbytes();
  const int64_t most = std::min(kBucket, all / 8);
  buckets_.clear();
  bucket_of_.assign(parameters_.size(), 0);
  for (const size_t i : order_) {
    const int64_t own = parameters_[i].tensor.nbytes();
    if (buckets_.empty() || bytes + own > most) {
      buckets_.emplace_back();
      bytes = 0;
    }
    bytes += own;
    bucket_of_[i] = buckets_.size() - 1;
    buckets_.back().parameters.push_back(i);
  }
}

void OwnedParameters::backward(const Tensor& loss) {
  std::vector<Tensor> leaves;
  for (const NamedTensor& p : parameters_) leaves.push_back(p.tensor);
  started_ = 0;
  const bool known = !buckets_.empty();
  order_.clear();
  for (Bucket& bucket : buckets_) bucket.open = bucket.parameters.size();
  {
    const LeafWatch watch(
        leaves,
        [&](size_t i) {
          if (known && overlap) return complete(i);
          order_.push_back(i);
        },
        [&] { poll(); });
    longspan::backward(loss);
  }
  if (!known) {
    make_buckets();
    for (Bucket& bucket : buckets_) bucket.open = 0;
  } else if (!overlap) {
    for (Bucket& bucket : buckets_) bucket.open = 0;
  }
  while (started_ < buckets_.size()) start_next();
  const size_t finished = started_ - std::min(started_, kUnderWay);
  for (size_t b = finished; b < buckets_.size(); ++b) finish(buckets_[b]);
  next_ += groups();
}

void OwnedParameters::complete(size_t i) {
  --buckets_[bucket_of_[i]].open;
  while (started_ < buckets_.size() && buckets_[started_].open == 0) start_next();
}

void OwnedParameters::start_next() {
  // No more are under way: so their memory does not depend on how fast others are.
  if (started_ >= kUnderWay) finish(buckets_[started_ - kUnderWay]);
  start(buckets_[started_++]);
}

void OwnedParameters::start(Bucket& bucket) {
  const int me = ranks_.rank();
  const auto size = static_cast<size_t>(ranks_.size());
  std::vector<Communicator::Send> out;
  std::vector<Communicator::Receive> in;
  bucket.present.clear();
  bucket.others.assign(size, std::string(bucket.parameters.size(), '0'));
  bucket.arrived.assign(bucket.parameters.size(), std::vector<Tensor>(size));
  for (size_t k = 0; k < bucket.parameters.size(); ++k) {
    const size_t i = bucket.parameters[k];
    const Tensor& p = parameters_[i].tensor;
    Tensor g = grad(p);
    set_grad(p, {});
    bucket.present += g ? '1' : '0';
    // What is sent does not depend on who has a gradient; finish() leaves out what is none.
    if (!g) g = zeros_like(p.detach());
    if (!g.contiguous()) g = contiguous(g);
    const int64_t n = count(i, me);
    const auto bytes = static_cast<int64_t>(size_of(p.dtype()));
    for (int r = 0; r < ranks_.size(); ++r) {
      const auto at = static_cast<size_t>(r);
      Tensor& part = bucket.arrived[k][at];
      if (r == me && n > 0) {
        part = clone(elements(g, parts_[i].begins[at], n));
        part.set_category(Category::gradient);
      }
      if (r == me) continue;
      if (count(i, r) > 0) {
        out.push_back({r, data_of(g) + parts_[i].begins[at] * bytes, count(i, r) * bytes});
      }
      if (n == 0) continue;
      part = Tensor::empty({n}, p.dtype(), p.device(), Category::gradient);
      in.push_back({r, data_of_written(part), n * bytes});
    }
    bucket.held.push_back(std::move(g));
  }
  bucket.others[static_cast<size_t>(me)] = bucket.present;
  // On the host the two are one exchange.
  const bool apart = device_.kind == DeviceKind::cuda;
  if (apart) {
    bucket.pending = ranks_.start(out, in, "gradients", device_);
    out.clear();
    in.clear();
  }
  for (int r = 0; r < ranks_.size(); ++r) {
    if (r == me) continue;
    out.push_back({r, bucket.present.data(), std::ssize(bucket.present)});
    in.push_back({r, bucket.others[static_cast<size_t>(r)].data(), std::ssize(bucket.present)});
  }
  (apart ? bucket.presence : bucket.pending) = ranks_.start(out, in, "gradients");
}

Tensor OwnedParameters::sum_of_group(Bucket& bucket, size_t k, int group) const {
  Tensor sum;
  for (int r = group * together_; r < (group + 1) * together_; ++r) {
    const auto at = static_cast<size_t>(r);
    Tensor g = std::exchange(bucket.arrived[k][at], {});
    if (!g || bucket.others[at][k] == '0') continue;
    if (sum) {
      kernels::accumulate(sum.device(), g.view(), sum.mut());
    } else {
      sum = std::move(g);
    }
  }
  const Shape& shape = parts_[bucket.parameters[k]].own.shape();
  return sum && sum.shape() != shape ? sum.alias(shape, contiguous_strides(shape), 0) : sum;
}

void OwnedParameters::finish(Bucket& bucket) {
  wait(bucket.pending);
  wait(bucket.presence);
  bucket.held.clear();
  for (size_t k = 0; k < bucket.parameters.size(); ++k) {
    const size_t i = bucket.parameters[k];
    for (int g = 0; g < groups(); ++g) sums_->add(i, next_ + g, sum_of_group(bucket, k, g));
    if (next_ + groups() < batches_) continue;
    if (Tensor sum = sums_->taken(i)) set_grad(parts_[i].own, std::move(sum));
  }
}

void OwnedParameters::poll() {
  // MPI moves bytes only inside its calls, and each call costs as much as a small node.
  constexpr auto kPause = std::chrono::microseconds(200);
  const auto now = std::chrono::steady_clock::now();
  if (now - polled_ < kPause) return;
  polled_ = now;
  for (size_t b = 0; b < started_; ++b) {
    for (Communicator::Pending* pending : {&buckets_[b].pending, &buckets_[b].presence}) {
      if (!pending->ended()) ranks_.poll(*pending);
    }
  }
}

void OwnedParameters::wait(Communicator::Pending& pending) {
  const auto begin = std::chrono::steady_clock::now();
  ranks_.wait(pending);
  exposed_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void OwnedParameters::spread() {
  const int me = ranks_.rank();
  std::vector<Communicator::Send> out;
  std::vector<Communicator::Receive> in;
  for (size_t i = 0; i < parts_.size(); ++i) {
    Tensor whole = parameters_[i].tensor.detach();
    const auto bytes = static_cast<int64_t>(size_of(whole.dtype()));
    char* const data = data_of_written(whole);
    for (int r = 0; r < ranks_.size(); ++r) {
      if (r == me) continue;
      const auto at = [&](int rank) {
        return data + parts_[i].begins[static_cast<size_t>(rank)] * bytes;
      };
      if (count(i, me) > 0) out.push_back({r, at(me), count(i, me) * bytes});
      if (count(i, r) > 0) in.push_back({r, at(r), count(i, r) * bytes});
    }
  }
  auto pending = ranks_.start(out, in, "parameters", device_);
  wait(pending);
}

double OwnedParameters::norm(std::optional<size_t> clip_group) {
  const auto counts = [&](size_t i) {
    return !clip_group || parameters_[i].clip_group == clip_groups_[*clip_group];
  };
  Packer mine;  // of each parameter the number of pieces, and their sums
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!counts(i)) continue;
    const Tensor g = grad(parts_[i].own);
    const std::vector<double> sums = g ? squared_sums(g) : std::vector<double>{};
    mine.put(sums.size());
    for (const double x : sums) mine.put(x);
  }
  const std::vector<std::string> all = ranks_.gather(mine.taken(), "norms of gradients");
  std::vector<Unpacker> of_rank(all.begin(), all.end());
  double sum = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!counts(i)) continue;
    for (Unpacker& u : of_rank) {
      for (auto left = u.value<size_t>(); left > 0; --left) sum += u.value<double>();
    }
  }
  return std::sqrt(sum);
}

std::string OwnedParameters::first_nonfinite() {
  TensorList own;
  for (size_t i = 0; i < parts_.size(); ++i) own.push_back({parameters_[i].name, parts_[i].own});
  const std::vector<std::string> all =
      ranks_.gather(first_nonfinite_gradient(own), "what is not finite");
  for (const NamedTensor& p : parameters_) {
    if (std::find(all.begin(), all.end(), p.name) != all.end()) return p.name;
  }
  return "none";
}

std::optional<size_t> OwnedParameters::parameter_of(const std::string& name) const {
  const std::string of = name.substr(0, name.rfind('.'));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name == of) return i;
  }
  return std::nullopt;
}

TensorList OwnedParameters::whole(const TensorList& on_device, const std::string& what) {
  TensorList parts;
  for (const NamedTensor& part : on_device) {
    parts.push_back({part.name, device_.kind == DeviceKind::cuda
                                    ? to_device(part.tensor.detach(), {})
                                    : part.tensor});
  }
  const std::vector<std::string> texts = ranks_.gather(description_of(parts), what);
  std::vector<std::vector<Described>> all;
  for (const std::string& text : texts) all.push_back(described(text));
  std::vector<Communicator::Send> out;
  std::vector<Communicator::Receive> in;
  TensorList result;
  // Each rank goes through the parameters in order, and through what their owners have of them.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string prefix = parameters_[i].name + ".";
    int owner = 0;
    while (owner + 1 < ranks_.size() && count(i, owner) == 0) ++owner;
    if (count(i, owner) == 0) owner = 0;  // a parameter without elements
    for (const Described& d : all[static_cast<size_t>(owner)]) {
      if (!d.name.starts_with(prefix) || parameter_of(d.name) != i) continue;
      const auto bytes = static_cast<int64_t>(size_of(d.dtype));
      const auto own = std::find_if(parts.begin(), parts.end(),
                                    [&](const NamedTensor& p) { return p.name == d.name; });
      const Shape shape = divisible_ ? parameters_[i].tensor.shape() : d.shape;
      Tensor whole;
      if (ranks_.rank() == 0) whole = Tensor::empty(shape, d.dtype, {}, Category::other);
      for (int r = 0; r < ranks_.size(); ++r) {
        const int64_t n = divisible_ ? count(i, r) : r == owner ? numel(shape) : 0;
        const int64_t begin = divisible_ ? parts_[i].begins[static_cast<size_t>(r)] : 0;
        if (n == 0) continue;
        char* const to = whole ? data_of_written(whole) + begin * bytes : nullptr;
        if (r == 0 && ranks_.rank() == 0)
          std::memcpy(to, data_of(own->tensor), static_cast<size_t>(n * bytes));
        if (r != 0 && ranks_.rank() == 0) in.push_back({r, to, n * bytes});
        if (r != 0 && ranks_.rank() == r) out.push_back({0, data_of(own->tensor), n * bytes});
      }
      if (whole) result.push_back({d.name, whole});
    }
  }
  auto pending = ranks_.start(out, in, what);
  ranks_.wait(pending);
  return result;
}

void OwnedParameters::take(const TensorList& whole, const TensorList& parts) const {
  for (const NamedTensor& part : parts) {
    const std::optional<size_t> i = parameter_of(part.name);
    require(i.has_value(), kRanks, "\"{}\" is of no parameter", part.name);
    const int64_t n = part.tensor.numel();
    if (count(*i, ranks_.rank()) == 0 || n == 0) continue;
    const auto at = std::find_if(whole.begin(), whole.end(),
                                 [&](const NamedTensor& w) { return w.name == part.name; });
    require(at != whole.end(), kRanks, "\"{}\" is missing", part.name);
    const int64_t begin = divisible_ ? parts_[*i].begins[static_cast<size_t>(ranks_.rank())] : 0;
    const bool fits = at->tensor.dtype() == part.tensor.dtype() &&
                      (divisible_ ? at->tensor.shape() == parameters_[*i].tensor.shape()
                                  : at->tensor.shape() == part.tensor.shape());
    if (!fits) fail_with<ShapeError>(kRanks, "a state does not fit", {{part.name, at->tensor}});
    Tensor to = part.tensor;
    const auto bytes = static_cast<int64_t>(size_of(to.dtype()));
    copy_from_host(to.device(), data_of_written(to), data_of(at->tensor) + begin * bytes,
                   n * bytes);
  }
}

}  // namespace longspan
