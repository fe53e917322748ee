#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/named_tensor.h"
#include "core/ranks/communicator.h"
#include "train/gradient_fold.h"
#include "train/optimizer.h"

namespace longspan {

/// The parameters of a model that several processes train with the same values. Each rank owns a
/// part of all elements: it sums the gradients of this part over all ranks, keeps the optimizer's
/// state of it and updates it; then all ranks get the new values. So gradients and states of N
/// ranks take an N-th of the memory \cite rajbhandari2020 (ZeRO, stage 2), and since one rank adds
/// up all contributions to an element, in order of the batches, the sums equal GradientFold's in
/// one process, bit for bit, for any number of ranks.
///   OwnedParameters owned(ranks);
///   auto optimizer = make(owned.divide(groups, true));   // of this rank's parts
///   optimizer->share(&owned);
///   ... for each step:
///   owned.begin(batches);
///   for (round ...) owned.backward(loss);
///   clip_gradients(*optimizer, 1); optimizer->step(lr); owned.spread();
class OwnedParameters : public Optimizer::Shared {
 public:
  /// Keeps a reference. `together`: so many ranks in order compute each batch together
  /// (SequenceSplit), and have parts of its gradient that are added up first, in order.
  explicit OwnedParameters(Communicator& ranks, int together = 1)
      : ranks_(ranks), together_(together) {}

  /// Divides parameters among the ranks and returns the groups with this rank's parts in their
  /// places: [n] of a parameter's elements in row-major order, n may be 0. Elements are dealt in
  /// runs of pieces of 32,768, so that each rank has nearly as many. If not `divisible`, each
  /// parameter is owned as a whole: the optimizer needs norms or means of whole tensors. All are on
  /// one device.
  std::vector<ParameterGroup> divide(const std::vector<ParameterGroup>& groups, bool divisible);

  /// The whole parameters, in order of the groups.
  const TensorList& parameters() const { return parameters_; }

  /// The number of batches of a round, each of which one rank computes, or some together.
  int groups() const { return ranks_.size() / together_; }
  /// Begins a step of so many batches of all ranks: they compute batches 0 to groups() - 1 in the
  /// first round, and so on. Gradients of this rank's parts wait for the same update.
  void begin(int64_t batches);
  /// Runs the backward pass of this rank's batch of a round, and adds up the gradients of all
  /// ranks' batches for this rank's parts. Gradients go to their owners while it runs, each as soon
  /// as it is complete (LeafWatch), in buckets of up to 1 MiB, at most four at a time, in the order
  /// in which the first rank completed them in the first round. The first round sends all gradients
  /// at its end. After the last round the parts have the sums, and the parameters no gradients.
  void backward(const Tensor& loss);
  /// Whether gradients go out during the backward pass, or else at its end.
  bool overlap = true;
  /// Seconds of waiting for other ranks.
  double exposed_seconds() const { return exposed_seconds_; }
  const Communicator& ranks() const { return ranks_; }
  /// Takes the updated values of all parts to all ranks.
  void spread();

  double norm(std::optional<size_t> clip_group) override;
  std::string first_nonfinite() override;

  /// Assembles tensors whose parts are on all ranks: returns them whole on rank 0, and nothing on
  /// the others.
  ///   parts  those of this rank, named PARAMETER.SUFFIX, in order of the parameters
  TensorList whole(const TensorList& parts, const std::string& what);
  /// Sets this rank's parts, named PARAMETER.SUFFIX, from whole tensors of those names. Throws
  /// ValueError that names one that is missing, ShapeError if it does not fit.
  void take(const TensorList& whole, const TensorList& parts) const;

 private:
  /// What this rank owns of a parameter.
  struct Part {
    std::vector<int64_t> begins;  // of each rank's elements, and the end of the last
    Tensor own;
  };
  /// Parameters whose gradients go out together.
  struct Bucket {
    std::vector<size_t> parameters;
    size_t open = 0;                           // of them, in this round
    std::vector<Tensor> held;                  // what is being sent
    std::string present;                       // which parameters have a gradient here: 1, else 0
    std::vector<std::string> others;           // the same of each rank
    std::vector<std::vector<Tensor>> arrived;  // of each parameter, of each rank
    Communicator::Pending pending = {}, presence = {};  // of the gradients, and of `present`
  };
  void deal(bool divisible);
  void make_buckets();
  void complete(size_t parameter);
  void start_next();
  void start(Bucket& bucket);
  void finish(Bucket& bucket);
  void poll();
  void wait(Communicator::Pending& pending);
  int64_t count(size_t parameter, int rank) const;
  /// Returns the index of the parameter of which NAME.SUFFIX is a state.
  std::optional<size_t> parameter_of(const std::string& name) const;

  /// Takes what the ranks of a group have for a parameter of a bucket, added up.
  Tensor sum_of_group(Bucket& bucket, size_t parameter, int group) const;

  Communicator& ranks_;
  int together_;
  Device device_;
  bool divisible_ = true;
  TensorList parameters_;
  std::vector<Part> parts_;
  std::vector<std::string> clip_groups_{""};
  std::vector<size_t> order_;  // in which gradients were complete in the first round
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  size_t started_ = 0;  // buckets of this round
  std::chrono::steady_clock::time_point polled_ = {};
  double exposed_seconds_ = 0;
  std::optional<FoldSums> sums_;
  int64_t batches_ = 0, next_ = 0;
};

}  // namespace longspan
