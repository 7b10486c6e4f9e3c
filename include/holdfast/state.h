// State: what is trained. It keeps all that the next step depends on where the death of a process
// can not harm it, makes the steps of all ranks one, and repeats a step in which a fault came.
//
// What a step may depend on, and who keeps it:
//   parameters, optimizer      in memory that outlives the process
//   buffers (batch norm, ...)  the same, each rank its own; a step that is repeated finds them as
//                              they were. So are parameters that require no gradient.
//   random numbers             torch's generator is seeded anew at each step's start, from
//                              (shuffle_seed, rank, step); so is what transforms draw in fetching
//   order of samples           a pure function of (shuffle_seed, epoch, index)
//   learning rate              a pure function of the step (holdfast/optimizer.h)
//   your own values            keep() them
//
// Parameters and optimizer are the same on all ranks. After a fault, after so many steps that it
// costs a thousandth of their time, and at the end of a loop that makes all its steps, the ranks
// compare what they hold. Where one holds other values, it changed them itself; the job ends with a
// sentence that names rank, tensor and step (HOLDFAST_DRIFT=warn: goes on).
//
// The gradient of a step is the mean over ranks: each rank's backward pass starts from
// 1 / world_size in place of 1, and the sums are taken in rank order, so the bits depend neither on
// timing nor on faults.
//
// All functions throw Failure; all are called by one thread, the one that called init().
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "holdfast/job.h"
#include "holdfast/optimizer.h"

namespace holdfast {

// All ranks give the same options, the same optimizer with the same numbers, and a data set of the
// same size. Holdfast compares these at the start and after a fault. A difference ends the job with
// a sentence that names it.
struct StepsOptions {
  // In all, counted from the first step ever: a loop that is entered again with the same number
  // makes none, and one with a number more makes one epoch.
  std::uint64_t epochs = 1;
  std::size_t batch = 32;  // Samples per rank and step. What does not fill a last step is left out.
  std::uint64_t shuffle_seed = 0;  // Of the samples' order and of torch's generator in each step.
  std::uint64_t max_steps = std::numeric_limits<std::uint64_t>::max();  // In all, as epochs.
  // The greatest norm of a step's gradients, all parameters' together, after the sum over the ranks
  // and before the update; 0: any. As torch::nn::utils::clip_grad_norm_, but the update alone sees
  // it: grad() stays as it was. A process that ends another's step clips alike.
  double clip_norm = 0;
  // Loops over several data sets, in turns: give each its epochs. A loop that begins within an
  // epoch goes on at its next step, which a shorter data set may not have (Failure).
};

template <class Dataset>
class Steps;

class State {
 public:
  // `module`: a module holder (TORCH_MODULE), or a std::shared_ptr to a module. Returns at once and
  // does not ask for the rank; until the first step the module is used as it is, and then has rank
  // 0's values in all ranks. Parameters must be float32 on the CPU. One State in a process.
  //
  // What the module has now is kept, and trained if it is a parameter that requires a gradient now.
  // A layer, a gradient or another tensor that comes later is a Failure (one that comes in the
  // middle of a loop: at the next loop), and so is torch::load() into the module after the first
  // steps(), version(), epoch() or digest(). Before them it does no harm in a process that replaces
  // another: that goes on from its predecessor's values all the same.
  template <class Impl>
  State(Job& job, const torch::nn::ModuleHolder<Impl>& module, Optimizer optimizer)
      : State(job, module.ptr(), std::move(optimizer), forward_of(*module)) {}
  template <std::derived_from<torch::nn::Module> Module>
  State(Job& job, const std::shared_ptr<Module>& module, Optimizer optimizer)
      : State(job, std::static_pointer_cast<torch::nn::Module>(module), std::move(optimizer),
              forward_of(*module)) {}
  // As ~Job. The module keeps its values, in memory of its own.
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // The steps that are still to be made, for a range-based for; each gives this rank's batch of
  // the step. `data`: a torch::data data set whose get_batch() gives examples (they are stacked) or
  // a batch, e.g. data.map(transforms::Stack<>()); its size is known and the same in all ranks.
  //
  // The step is made, on all ranks or on none, when the loop's body has ended: it takes its samples
  // from the batch and calls step() once. Where a fault came meanwhile, the same batch comes again,
  // and buffers, kept values and random numbers are as they were. What else the body changes is
  // yours: a body may run twice for one step, and a process that replaces another starts with the
  // step after the last. A body left by break or return makes no step: the state is that before it.
  //
  // A spare waits in here, with the network built, the data loaded and one forward and backward
  // pass rehearsed.
  template <class Dataset>
  [[nodiscard]] Steps<Dataset> steps(Dataset&& data, const StepsOptions& options) {
    return Steps<Dataset>(*this, std::forward<Dataset>(data), options);
  }

  // In the loop's body: the backward pass of `loss` (one number), and the sums over ranks, which
  // overlap with it. The update is made when the body ends. Of several micro-batches, give the sum
  // of their losses. The gradients are not yours: one that is changed after the call may be summed
  // already or not yet, and the ranks would drift apart. StepsOptions::clip_norm clips them.
  // Whatever is thrown in here has to leave the loop: the step is made no more, and a body that
  // goes on ends in a Failure.
  void step(const torch::Tensor& loss);

  // Makes a value of yours part of the state: a repeated step finds it as it was at the step's
  // start, and a process that replaces another as its predecessor had it at the last step's end.
  // Before the first steps(); it must outlive this State. Names may not repeat. Change it in the
  // bodies of steps(): what lies between two loops is run again by a process that replaces another.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void keep(const std::string& name, T& value) { keep_bytes(name, &value, sizeof value); }

  // Writes what the last step left, as safetensors with the data at a multiple of 4096. Parameters,
  // buffers and parameters without gradient have their names; the rest are
  // "optimizer.<parameter>.<momentum_buffer, exp_avg or exp_avg_sq>" and "kept.<name>" (bytes).
  // Rank 0 writes, with its own buffers; the others return at once. The file appears whole or not
  // at all, and outlives a loss of power.
  void save(const std::string& path);

  [[nodiscard]] std::uint64_t version();  // Steps made so far, over all processes and epochs.
  [[nodiscard]] std::uint64_t epoch();    // From 0: that of the step under way, or the next.
  [[nodiscard]] bool replaying() const;   // In a body: it has run for this step before.
  // Equal for equal states (parameters, optimizer, this rank's buffers and kept values) at equal
  // versions, different for others but for a chance of 2^-64. Reads all of it.
  [[nodiscard]] std::uint64_t digest();

 private:
  template <class Dataset>
  friend class Steps;
  struct Parts;
  using Forward = std::function<torch::Tensor(const torch::Tensor&)>;
  using Fetch = std::function<void(const std::vector<std::size_t>& indices)>;

  State(Job& job, std::shared_ptr<torch::nn::Module> module, Optimizer optimizer, Forward forward);

  // For the rehearsal; a module without such a forward() is not rehearsed.
  template <class Module>
  static Forward forward_of(Module& module) {
    if constexpr (requires(const torch::Tensor& x) {
                    { module.forward(x) } -> std::convertible_to<torch::Tensor>;
                  }) {
      return [&module](const torch::Tensor& x) -> torch::Tensor { return module.forward(x); };
    } else {
      return nullptr;
    }
  }

  void keep_bytes(const std::string& name, void* value, std::size_t bytes);
  // `fetch` gets the samples of these indices for the body; `rehearsal` gives what it got to the
  // rehearsal, if that is one tensor.
  void begin_loop(const StepsOptions& options, std::optional<std::size_t> size, Fetch fetch,
                  std::function<torch::Tensor()> rehearsal);
  bool advance();   // Ends the step whose body has ended and begins the next, if there is one.
  void end_loop();  // Gives up a step whose body has not ended.

  std::shared_ptr<Parts> parts_;
};

// The range of State::steps(); for one loop.
template <class Dataset>
class Steps {
  using Data = std::remove_reference_t<Dataset>;
  using Fetched = decltype(std::declval<Data&>().get_batch(std::declval<std::vector<size_t>&>()));
  template <class T>
  struct Collated {
    using type = T;
  };
  template <class Example>
  struct Collated<std::vector<Example>> {
    using type = Example;
  };

 public:
  using Batch = typename Collated<Fetched>::type;

  class Iterator {
   public:
    Batch& operator*() const { return steps_->batch_; }
    void operator++() { steps_->advance(); }
    bool operator!=(std::nullptr_t) const { return !steps_->done_; }

   private:
    friend class Steps;
    explicit Iterator(Steps* steps) : steps_(steps) {}
    Steps* steps_;
  };

  Iterator begin() {
    const auto size = data_.size();  // Of torch's own optional, in older releases.
    state_.begin_loop(
        options_, size ? std::optional<std::size_t>(*size) : std::nullopt,
        [this](const auto& indices) { fetch(indices); }, [this] { return input(); });
    advance();
    return Iterator(this);
  }
  std::nullptr_t end() const { return nullptr; }
  ~Steps() { state_.end_loop(); }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

 private:
  friend class State;
  Steps(State& state, Dataset&& data, const StepsOptions& options)
      : state_(state), data_(std::forward<Dataset>(data)), options_(options) {}

  void advance() { done_ = !state_.advance(); }

  void fetch(const std::vector<std::size_t>& indices) {
    auto fetched = data_.get_batch(indices);
    if constexpr (std::is_same_v<Fetched, Batch>) {
      batch_ = std::move(fetched);
    } else {
      batch_ = torch::data::transforms::Stack<Batch>().apply_batch(std::move(fetched));
    }
  }

  torch::Tensor input() const {
    if constexpr (requires {
                    { batch_.data } -> std::convertible_to<torch::Tensor>;
                  }) {
      return batch_.data;
    } else {
      return {};
    }
  }

  State& state_;
  Dataset data_;  // A reference where it was given as one.
  StepsOptions options_;
  Batch batch_;
  bool done_ = true;
};

}  // namespace holdfast
