#include "app/ranks/batch_report.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "core/ranks/packed.h"
#include "ops/copy.h"

namespace longspan {
namespace {

std::string packed(const BatchReport& report, const ModuleList& modules) {
  Packer p;
  p.put(report.loss);
  p.put(report.tokens);
  p.put(report.counted);
  p.put(report.peak);
  p.put(report.auxiliary.size());
  for (const auto& [name, value] : report.auxiliary) {
    p.put(name);
    p.put(value);
  }
  p.put(report.statistics.size());
  for (const Statistics& s : report.statistics) {
    size_t at = 0;
    while (at < modules.modules.size() && modules.modules[at].second != s.of) ++at;
    require(at < modules.modules.size(), "ranks", "statistics are of a module that is not visited");
    p.put(at);
    p.put(s.sums.size());
    for (const Tensor& sum : s.sums) p.put(to_device(contiguous(sum.detach()), {}));
  }
  return p.taken();
}

BatchReport unpacked(std::string_view bytes, const ModuleList& modules, Device device) {
  Unpacker u(bytes);
  BatchReport report;
  report.loss = u.value<double>();
  report.tokens = u.value<int64_t>();
  report.counted = u.value<int64_t>();
  report.peak = u.value<int64_t>();
  for (auto left = u.value<size_t>(); left > 0; --left) {
    std::string name = u.text();
    report.auxiliary.emplace_back(std::move(name), u.value<double>());
  }
  for (auto left = u.value<size_t>(); left > 0; --left) {
    Statistics s{.of = modules.modules.at(u.value<size_t>()).second, .sums = {}};
    for (auto sums = u.value<size_t>(); sums > 0; --sums)
      s.sums.push_back(to_device(u.tensor(), device));
    report.statistics.push_back(std::move(s));
  }
  return report;
}

}  // namespace

std::vector<BatchReport> exchanged(Communicator& ranks, BatchReport own, const ModuleList& modules,
                                   Device device) {
  if (ranks.size() == 1) return {std::move(own)};
  std::vector<BatchReport> all;
  for (const std::string& bytes : ranks.gather(packed(own, modules), "the losses of a batch")) {
    all.push_back(unpacked(bytes, modules, device));
  }
  return all;
}

BatchReport sum_of_shares(std::span<BatchReport> shares) {
  BatchReport sum = std::move(shares[0]);
  for (BatchReport& share : shares.subspan(1)) {
    sum.loss += share.loss;
    sum.peak = std::max(sum.peak, share.peak);
    for (size_t i = 0; i < sum.auxiliary.size(); ++i) {
      sum.auxiliary[i].second += share.auxiliary.at(i).second;
    }
    add_statistics(sum.statistics, std::move(share.statistics));
  }
  return sum;
}

std::vector<TensorList> to_first(Communicator& ranks, const TensorList& mine,
                                 const std::string& what) {
  Packer p;
  for (const NamedTensor& t : mine) {
    p.put(t.name);
    p.put(to_device(contiguous(t.tensor.detach()), {}));
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
