#include "app/ranks/batch_report.h"

#include <cstring>
#include <string_view>

#include "core/error.h"
#include "ops/copy.h"

namespace longspan {
namespace {

/// Appends values to a string of bytes.
class Packer {
 public:
  template <class T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(std::ssize(text));
    bytes_ += text;
  }
  void put(const Tensor& x) {
    const Tensor own = contiguous(x.detach());
    put(own.dtype());
    put(own.rank());
    for (const int64_t size : own.shape()) put(size);
    bytes_.append(static_cast<const char*>(own.view().data), static_cast<size_t>(own.nbytes()));
  }
  std::string taken() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Takes them out again.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T value() {
    T x;
    std::memcpy(&x, take(sizeof x).data(), sizeof x);
    return x;
  }
  std::string text() { return std::string(take(static_cast<size_t>(value<std::ptrdiff_t>()))); }
  Tensor tensor() {
    const auto dtype = value<DType>();
    std::vector<int64_t> sizes(static_cast<size_t>(value<int>()));
    for (int64_t& size : sizes) size = value<int64_t>();
    Tensor x = Tensor::empty(Shape(sizes), dtype, {});
    const std::string_view data = take(static_cast<size_t>(x.nbytes()));
    if (!data.empty()) std::memcpy(x.mut().data, data.data(), data.size());
    return x;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view take(size_t count) {
    require(count <= bytes_.size(), "ranks", "a message is cut off");
    const std::string_view part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }
  std::string_view bytes_;
};

std::string packed(const BatchReport& report, const ModuleList& modules) {
  Packer p;
  p.put(report.loss);
  p.put(report.tokens);
  p.put(report.counted);
  p.put(std::ssize(report.auxiliary));
  for (const auto& [name, value] : report.auxiliary) {
    p.put(name);
    p.put(value);
  }
  p.put(std::ssize(report.statistics));
  for (const Statistics& s : report.statistics) {
    std::ptrdiff_t at = 0;
    while (at < std::ssize(modules.modules) &&
           modules.modules[static_cast<size_t>(at)].second != s.of) {
      ++at;
    }
    require(at < std::ssize(modules.modules), "ranks",
            "statistics are of a module that is not visited");
    p.put(at);
    p.put(std::ssize(s.sums));
    for (const Tensor& sum : s.sums) p.put(sum);
  }
  return p.taken();
}

BatchReport unpacked(std::string_view bytes, const ModuleList& modules) {
  Unpacker u(bytes);
  BatchReport report;
  report.loss = u.value<double>();
  report.tokens = u.value<int64_t>();
  report.counted = u.value<int64_t>();
  for (auto left = u.value<std::ptrdiff_t>(); left > 0; --left) {
    std::string name = u.text();
    report.auxiliary.emplace_back(std::move(name), u.value<double>());
  }
  for (auto left = u.value<std::ptrdiff_t>(); left > 0; --left) {
    Statistics s{.of = modules.modules.at(static_cast<size_t>(u.value<std::ptrdiff_t>())).second,
                 .sums = {}};
    for (auto sums = u.value<std::ptrdiff_t>(); sums > 0; --sums) s.sums.push_back(u.tensor());
    report.statistics.push_back(std::move(s));
  }
  return report;
}

}  // namespace

std::vector<BatchReport> exchanged(Communicator& ranks, BatchReport own,
                                   const ModuleList& modules) {
  if (ranks.size() == 1) return {std::move(own)};
  std::vector<BatchReport> all;
  for (const std::string& bytes : ranks.gather(packed(own, modules), "the losses of a batch")) {
    all.push_back(unpacked(bytes, modules));
  }
  return all;
}

std::vector<TensorList> to_first(Communicator& ranks, const TensorList& mine,
                                 const std::string& what) {
  Packer p;
  for (const NamedTensor& t : mine) {
    p.put(t.name);
    p.put(t.tensor);
  }
  const std::string bytes = p.taken();
  const auto size = std::ssize(bytes);
  std::vector<TensorList> all(static_cast<size_t>(ranks.size()));
  const std::vector<std::string> sizes =
      ranks.gather(std::string_view(reinterpret_cast<const char*>(&size), sizeof size), what);
  std::vector<std::string> others(all.size());
  std::vector<Communicator::Send> out;
  std::vector<Communicator::Receive> in;
  if (ranks.rank() != 0 && size > 0) out.push_back({0, bytes.data(), size});
  for (int r = 1; r < ranks.size() && ranks.rank() == 0; ++r) {
    const auto at = static_cast<size_t>(r);
    std::ptrdiff_t count = 0;
    std::memcpy(&count, sizes[at].data(), sizeof count);
    others[at].resize(static_cast<size_t>(count));
    if (count > 0) in.push_back({r, others[at].data(), count});
  }
  auto pending = ranks.start(out, in, what);
  ranks.wait(pending);
  if (ranks.rank() != 0) return all;
  all[0] = mine;
  for (size_t r = 1; r < all.size(); ++r) {
    for (Unpacker u(others[r]); !u.empty();) {
      std::string name = u.text();
      all[r].push_back({std::move(name), u.tensor()});
    }
  }
  return all;
}

}  // namespace longspan
