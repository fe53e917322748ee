#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "core/ranks/device_transport.h"

namespace longspan {

/// Thrown if other processes of the run do not answer in time.
class RankLost : public Error {
  using Error::Error;
};

/// Moves bytes between two processes; adds nothing and knows no tensors. One of these stands behind
/// a Communicator: MPI (mpi/), or threads in tests.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Starts to send or receive up to 1 GiB and returns a request, never null. Messages between two
  /// ranks with one tag arrive in order. The bytes must stay until the request has ended.
  virtual void* send(int to, int tag, const void* data, int64_t bytes) = 0;
  virtual void* receive(int from, int tag, void* data, int64_t bytes) = 0;
  /// Makes progress, never blocks, and returns whether the request has ended; it is gone then.
  virtual bool ended(void* request) = 0;
  /// Ends all processes of the run, at once.
  virtual void end_all() = 0;
};

/// The processes (ranks) that train together. Every rank makes the same calls in the same order,
/// all from one thread.
class Communicator {
 public:
  using Send = SentPart;
  using Receive = ReceivedPart;

  /// Of one process alone.
  Communicator() = default;
  Communicator(std::unique_ptr<Transport> transport, int rank, int size, int local_rank,
               int local_size, std::string host);
  /// Of one of several ranks that do not exist: nothing moves, every exchange ends at once, and
  /// gather() returns what this rank gives in the place of all. Bytes and messages are counted. For
  /// predictions.
  static std::unique_ptr<Communicator> rehearsed(int rank, int size);
  /// Returns the processes of this one's group: ranks are divided into groups of `together` in
  /// order, and counted anew in each. Messages of different calls of group() and of all ranks do
  /// not mix. Keeps a reference, and has the present timeout. Throws ValueError unless `together`
  /// divides size(), for a group, and beyond four calls.
  std::unique_ptr<Communicator> group(int together);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The same among the ranks of this host.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const std::string& host() const { return host_; }

  /// An exchange that has been started.
  class Pending {
   public:
    bool ended() const { return requests_.empty() && on_device_ == nullptr; }

   private:
    friend class Communicator;
    std::vector<std::pair<void*, int>> requests_;  // with the peer
    void* on_device_ = nullptr;                    // the request of the device
    std::vector<int> peers_;                       // of that
    /// What lies on the host in place of a device's memory.
    std::vector<std::vector<char>> held_;
    std::vector<std::pair<void*, const std::vector<char>*>> to_device_;
    Device device_;
    std::string what_;
  };

  /// Starts an exchange: any number of parts of any size with any ranks but this one. Parts between
  /// two ranks are matched in order, and must have the same size on both sides.
  ///   what    what is exchanged, for error messages: "gradients of step 7"
  ///   device  where the parts are: its own transport moves them, or the host if it has none
  Pending start(std::span<const Send> out, std::span<const Receive> in, std::string what,
                Device device = {});
  /// Has exchanges of a device's memory go from device to device; all ranks call it together.
  /// Returns why they go by way of the host instead, or nothing.
  std::string open(Device device);
  /// Makes progress, never blocks, and returns whether the exchange has ended.
  bool poll(Pending& pending);
  /// Waits for its end. Throws RankLost that names the ranks that owe something once `timeout`
  /// seconds have passed.
  void wait(Pending& pending);

  /// Returns what each rank has given, in order of ranks; sizes may differ.
  std::vector<std::string> gather(std::string_view mine, const std::string& what);
  /// Returns what rank 0 has given.
  std::string from_first(std::string_view mine, const std::string& what);

  /// Ends all processes of the run with a message on standard error that names this rank. Does not
  /// return.
  [[noreturn]] void abort(const std::string& message);

  double timeout = 300;  ///< seconds
  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t sent_messages() const { return sent_messages_; }
  /// Seconds spent in wait().
  double waited_seconds() const { return waited_seconds_; }

 private:
  Pending staged(std::span<const Send> out, std::span<const Receive> in, std::string what,
                 Device device);
  std::vector<int> owing(const Pending& pending) const;

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<DeviceTransport> device_transport_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  int first_ = 0;  // the first rank of a group among all ranks
  bool is_group_ = false;
  int groups_ = 0;  // that have been made
  std::string host_;
  int next_tag_ = 0;
  int64_t sent_bytes_ = 0, sent_messages_ = 0;
  double waited_seconds_ = 0;
};

/// Returns how many processes a launcher has started with this one, itself included, and whether
/// this is the first; from the environment, without MPI.
struct Launched {
  int processes = 1;
  bool first = true;
};
Launched launched();

/// Returns the processes that mpirun has started with this one, or one alone. Throws Error if there
/// are several and this build has no MPI.
std::unique_ptr<Communicator> open_communicator();

}  // namespace longspan
