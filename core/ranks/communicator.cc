#include "core/ranks/communicator.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "core/memory.h"
#include "core/ranks/transport_module.h"

namespace longspan {
namespace {

constexpr int64_t kLargest = int64_t{1} << 30;  // bytes of a message
// Tags of all ranks, and of each of a few groups after them: MPI has 32,767 or more.
constexpr int kTags = 6'000, kGroups = 4;

/// The messages of a group, by the transport of all ranks.
class GroupTransport : public Transport {
 public:
  GroupTransport(Transport& all, int first, int number)
      : all_(all), first_(first), tags_(kTags * (1 + number)) {}
  void* send(int to, int tag, const void* data, int64_t bytes) override {
    return all_.send(first_ + to, tags_ + tag, data, bytes);
  }
  void* receive(int from, int tag, void* data, int64_t bytes) override {
    return all_.receive(first_ + from, tags_ + tag, data, bytes);
  }
  bool ended(void* request) override { return all_.ended(request); }
  void end_all() override { all_.end_all(); }

 private:
  Transport& all_;
  int first_, tags_;
};

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> transport, int rank, int size, int local_rank,
                           int local_size, std::string host)
    : transport_(std::move(transport)),
      rank_(rank),
      size_(size),
      local_rank_(local_rank),
      local_size_(local_size),
      host_(std::move(host)) {}

Communicator::~Communicator() = default;

std::unique_ptr<Communicator> Communicator::rehearsed(int rank, int size) {
  return std::make_unique<Communicator>(nullptr, rank, size, rank, size, "");
}

std::unique_ptr<Communicator> Communicator::group(int together) {
  require(together >= 1 && size_ % together == 0, "ranks",
          "{} processes cannot be divided into groups of {}; start a multiple of it", size_,
          together);
  require(!is_group_ && groups_ < kGroups, "ranks",
          "groups are not divided again, and there are {} divisions at most", kGroups);
  const int first = rank_ / together * together;
  std::unique_ptr<Transport> transport;
  if (transport_) transport = std::make_unique<GroupTransport>(*transport_, first, groups_);
  auto group = std::make_unique<Communicator>(std::move(transport), rank_ - first, together,
                                              local_rank_, local_size_, host_);
  ++groups_;
  group->is_group_ = true;
  group->first_ = first;
  group->timeout = timeout;
  return group;
}

std::string Communicator::open(Device device) {
  if (transport_ == nullptr || size_ == 1) return {};
  std::string problem = "this build has no NCCL";
  if (kernels::open_device_transport.has(device.kind)) {
    kernels::open_device_transport(device, this, &device_transport_, &problem);
  }
  return device_transport_ == nullptr ? problem : std::string();
}

Communicator::Pending Communicator::staged(std::span<const Send> out, std::span<const Receive> in,
                                           std::string what, Device device) {
  std::vector<std::vector<char>> held;
  std::vector<Send> sent;
  std::vector<Receive> received;
  for (const Send& s : out) {
    std::vector<char>& here = held.emplace_back(static_cast<size_t>(s.bytes));
    copy_to_host(device, here.data(), s.data, s.bytes);
    sent.push_back({s.to, here.data(), s.bytes});
  }
  for (const Receive& r : in) {
    std::vector<char>& here = held.emplace_back(static_cast<size_t>(r.bytes));
    received.push_back({r.from, here.data(), r.bytes});
  }
  Pending pending = start(sent, received, std::move(what));
  pending.held_ = std::move(held);
  for (size_t i = 0; i < in.size(); ++i) {
    pending.to_device_.emplace_back(in[i].data, &pending.held_[out.size() + i]);
  }
  pending.device_ = device;
  return pending;
}

Communicator::Pending Communicator::start(std::span<const Send> out, std::span<const Receive> in,
                                          std::string what, Device device) {
  const bool moves = transport_ != nullptr && device.kind == DeviceKind::cuda;
  if (moves && device_transport_ == nullptr) return staged(out, in, std::move(what), device);
  Pending pending;
  pending.what_ = std::move(what);
  for (const Send& s : out) {
    sent_bytes_ += s.bytes;
    sent_messages_ += (s.bytes + kLargest - 1) / kLargest;
  }
  if (moves) {
    std::set<int> peers;
    for (const Send& s : out) peers.insert(s.to);
    for (const Receive& r : in) peers.insert(r.from);
    pending.peers_.assign(peers.begin(), peers.end());
    if (!peers.empty()) pending.on_device_ = device_transport_->start(out, in);
    return pending;
  }
  if (transport_ == nullptr) return pending;
  const int tag = next_tag_;
  next_tag_ = (next_tag_ + 1) % kTags;
  const auto in_messages = [](int64_t bytes, const auto& move) {
    for (int64_t at = 0; at < bytes; at += kLargest) move(at, std::min(kLargest, bytes - at));
  };
  for (const Receive& r : in) {
    in_messages(r.bytes, [&](int64_t at, int64_t bytes) {
      pending.requests_.emplace_back(
          transport_->receive(r.from, tag, static_cast<char*>(r.data) + at, bytes), r.from);
    });
  }
  for (const Send& s : out) {
    in_messages(s.bytes, [&](int64_t at, int64_t bytes) {
      pending.requests_.emplace_back(
          transport_->send(s.to, tag, static_cast<const char*>(s.data) + at, bytes), s.to);
    });
  }
  return pending;
}

bool Communicator::poll(Pending& pending) {
  std::erase_if(pending.requests_,
                [&](const auto& request) { return transport_->ended(request.first); });
  if (pending.on_device_ != nullptr && device_transport_->ended(pending.on_device_)) {
    pending.on_device_ = nullptr;
  }
  if (!pending.ended()) return false;
  for (const auto& [to, from] : pending.to_device_) {
    copy_from_host(pending.device_, to, from->data(), std::ssize(*from));
  }
  pending.to_device_.clear();
  pending.held_.clear();
  return true;
}

std::vector<int> Communicator::owing(const Pending& pending) const {
  std::set<int> all;
  for (const auto& [request, peer] : pending.requests_) all.insert(first_ + peer);
  if (pending.on_device_ != nullptr) {
    for (const int peer : pending.peers_) all.insert(first_ + peer);
  }
  return {all.begin(), all.end()};
}

void Communicator::wait(Pending& pending) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto waited = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (int64_t turn = 0; !poll(pending); ++turn) {
    // Ranks often arrive together: a moment of spinning saves the time of waking up.
    if (turn < 200) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(turn < 2000 ? 20 : 200));
    if (waited() < timeout) continue;
    throw RankLost(fmt::format(
        "ranks: {} did not come within {} s, from rank {}; --set ranks.timeout=SECONDS is for "
        "slower ones",
        pending.what_, timeout, fmt::join(owing(pending), ", ")));
  }
  waited_seconds_ += waited();
}

std::vector<std::string> Communicator::gather(std::string_view mine, const std::string& what) {
  std::vector<std::string> all(static_cast<size_t>(size_));
  all[static_cast<size_t>(rank_)] = mine;
  if (transport_ == nullptr) {
    std::fill(all.begin(), all.end(), std::string(mine));
    sent_bytes_ += (size_ - 1) * (std::ssize(mine) + static_cast<int64_t>(sizeof(int64_t)));
    sent_messages_ += 2 * (size_ - 1);
    return all;
  }
  std::vector<int64_t> sizes(all.size());
  const auto own = static_cast<int64_t>(mine.size());
  std::vector<Send> out;
  std::vector<Receive> in;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    out.push_back({r, &own, sizeof own});
    in.push_back({r, &sizes[static_cast<size_t>(r)], sizeof own});
  }
  Pending counts = start(out, in, what);
  wait(counts);
  out.clear();
  in.clear();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    std::string& text = all[static_cast<size_t>(r)];
    text.resize(static_cast<size_t>(sizes[static_cast<size_t>(r)]));
    out.push_back({r, mine.data(), own});
    in.push_back({r, text.data(), std::ssize(text)});
  }
  Pending texts = start(out, in, what);
  wait(texts);
  return all;
}

std::string Communicator::from_first(std::string_view mine, const std::string& what) {
  return gather(rank_ == 0 || transport_ == nullptr ? mine : std::string_view(), what)[0];
}

void Communicator::abort(const std::string& message) {
  std::fprintf(stderr, "rank %d on %s: %s\n", first_ + rank_, host_.c_str(), message.c_str());
  std::fflush(nullptr);
  if (transport_) transport_->end_all();
  _exit(1);
}

namespace {

/// The module in mpi/, which is loaded if mpirun has started this process.
class ModuleTransport : public Transport {
 public:
  explicit ModuleTransport(const TransportModule& module) : module_(module) {}
  ~ModuleTransport() override { module_.finish(); }
  void* send(int to, int tag, const void* data, int64_t bytes) override {
    return module_.send(to, tag, data, bytes);
  }
  void* receive(int from, int tag, void* data, int64_t bytes) override {
    return module_.receive(from, tag, data, bytes);
  }
  bool ended(void* request) override { return module_.ended(request) != 0; }
  void end_all() override { module_.end_all(); }

 private:
  const TransportModule& module_;
};

/// Returns the module, loaded.
void* open_module(std::string& tried) {
  const std::vector<std::string> places = mpi_module_places();
  std::error_code error;
  for (const std::string& place : places) {
    if (!std::filesystem::exists(place, error)) continue;
    if (void* module = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL)) return module;
    tried = dlerror();
  }
  if (tried.empty()) tried = fmt::format("none of {} is there", fmt::join(places, ", "));
  return nullptr;
}

}  // namespace

std::vector<std::string> mpi_module_places() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::string> places;
  if (const char* named = std::getenv("LONGSPAN_MPI")) places.emplace_back(named);
  for (const char* folder : {".", "..", "../..", "../lib/longspan", LONGSPAN_MODULES}) {
    places.push_back((program / folder / "longspan_mpi.so").lexically_normal());
  }
  return places;
}

Launched launched() {
  const auto number = [](std::initializer_list<const char*> names, int otherwise) {
    for (const char* name : names) {
      if (const char* const text = std::getenv(name)) return std::atoi(text);
    }
    return otherwise;
  };
  return {number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1),
          number({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}, 0) == 0};
}

std::unique_ptr<Communicator> open_communicator() {
  if (launched().processes <= 1) return std::make_unique<Communicator>();
  std::string tried;
  void* const module = open_module(tried);
  require(module != nullptr, "ranks",
          "mpirun has started this program, whose module for MPI cannot be loaded ({}); build it "
          "where libopenmpi-dev is installed, or start one process without mpirun",
          tried);
  using Open = const TransportModule* (*)();
  const auto open = reinterpret_cast<Open>(dlsym(module, "longspan_transport"));
  require(open != nullptr, "ranks", "the module for MPI has no longspan_transport()");
  const TransportModule* const t = open();
  require(t != nullptr && t->version == TransportModule::current, "ranks",
          "the module for MPI is of another version; build both again");
  require(
      t->size == launched().processes, "ranks",
      "{} processes have been started, and MPI knows of {}; start them with mpirun, or with the "
      "option that has the launcher serve this MPI (srun --mpi=pmix)",
      launched().processes, t->size);
  return std::make_unique<Communicator>(std::make_unique<ModuleTransport>(*t), t->rank, t->size,
                                        t->local_rank, t->local_size, t->host);
}

}  // namespace longspan
