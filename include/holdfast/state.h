// State: the model that is trained. It keeps all that the next step depends on where the death of a
// process can not harm it. It makes each step on all ranks or on none, and repeats a step in which
// a fault came.
//
// What a step may depend on, and who keeps it:
//   parameters, optimizer      in memory that outlives the process
//   buffers (batch norm, ...)  the same, each rank its own; a step that is repeated finds them as
//                              they were. So are parameters that require no gradient.
//   random numbers             torch's generator is seeded anew at each step's start, from
//                              (shuffle_seed, rank, step), before the batch is fetched and
//                              transformed
//   order of samples           a pure function of (shuffle_seed, epoch, index)
//   learning rate              a pure function of the step (holdfast/optimizer.h)
//   your own values            keep() them
//
// Parameters and optimizer are the same on all ranks. The ranks compare them after a fault, at the
// end of a loop that makes all its steps, and in between so seldom that it costs a thousandth of
// the time (HOLDFAST_DIGEST_EVERY). A rank that holds other values than most ranks is given theirs.
// If it differs again in the next step, its program has changed them: the job ends with a sentence
// that names rank, tensor and step, and so it does if no values are those of most ranks
// (HOLDFAST_DRIFT=warn: goes on).
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

namespace train {
class Tables;
}

// All ranks give the same options, the same optimizer with the same numbers, and a data set of the
// same size. Holdfast compares these at the start and after a fault. A difference ends the job with
// a sentence that names it.
struct StepsOptions {
  // The total, counted from the first step ever: a second loop with the same number makes no step,
  // and one with a number higher by one makes one epoch.
  std::uint64_t epochs = 1;
  std::size_t batch = 32;  // Samples per rank and step. Samples too few for a step are left out.
  std::uint64_t shuffle_seed = 0;  // Seeds the order of samples, and torch's generator.
  std::uint64_t max_steps = std::numeric_limits<std::uint64_t>::max();  // A total, as `epochs`.
  // Clips the gradients of a step to this norm, all parameters' together, after the sum over the
  // ranks and before the update; 0: no clipping. Like torch::nn::utils::clip_grad_norm_, except
  // that grad() keeps its values. A process that finishes another's step clips in the same way.
  double clip_norm = 0;
  // To train on several data sets in turns, end each loop with an epoch, by `epochs`. A loop that
  // begins within an epoch goes on at that epoch's next step; a shorter data set may not have it
  // (Failure).
};

template <class Dataset>
class Steps;

class State {
 public:
  // `module`: a module holder (TORCH_MODULE), or a std::shared_ptr to a module. Returns at once,
  // without waiting for the rank. Until the first step the module has its own values; from then on
  // all ranks have rank 0's. Parameters must be float32 on the CPU. One State in a process.
  //
  // All that the module has now is kept. Parameters that require a gradient now are trained. It is
  // a Failure to add a layer, to require another gradient or to replace a tensor later (a layer
  // that is added in the middle of a loop is noticed at the next loop). So is torch::load() into
  // the module after the first steps(), version(), epoch() or digest(). Before these, torch::load()
  // is harmless: a process that replaces another takes its predecessor's values in any case.
  template <class Impl>
  State(Job& job, const torch::nn::ModuleHolder<Impl>& module, Optimizer optimizer)
      : State(job, module.ptr(), std::move(optimizer), forward_of(*module)) {}
  template <std::derived_from<torch::nn::Module> Module>
  State(Job& job, const std::shared_ptr<Module>& module, Optimizer optimizer)
      : State(job, std::static_pointer_cast<torch::nn::Module>(module), std::move(optimizer),
              forward_of(*module)) {}
  // Ends this rank's training as ~Job does. The module keeps its values, in memory of its own.
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // The steps that are still to be made, for a range-based for; each gives this rank's batch of
  // the step. `data`: a torch::data data set whose get_batch() gives examples (they are stacked) or
  // a batch, e.g. data.map(transforms::Stack<>()); its size is known and the same in all ranks.
  //
  // The loop's body takes its samples from the batch and calls step() once. When the body has
  // ended, the step is made, on all ranks or on none. After a fault the same batch comes again, and
  // buffers, kept values and random numbers are as they were. All else that the body changes is not
  // put back: a body may run twice for one step, and a process that replaces another starts with
  // the step after the last one made. A body left by break or return makes no step: the state stays
  // as it was before.
  //
  // A spare waits in here, with the network built, the data loaded and one forward and backward
  // pass rehearsed.
  template <class Dataset>
  [[nodiscard]] Steps<Dataset> steps(Dataset&& data, const StepsOptions& options) {
    return Steps<Dataset>(*this, std::forward<Dataset>(data), options);
  }

  // In the loop's body: makes the backward pass of `loss` (one number), and sums the gradients over
  // the ranks meanwhile. The update is made when the body ends. For several micro-batches, give the
  // sum of their losses. Do not change gradients after the call: they may be summed already or not
  // yet, and the ranks would drift apart. StepsOptions::clip_norm clips them. An exception from
  // this call has to leave the loop: the step is lost, and a body that goes on ends in a Failure.
  void step(const torch::Tensor& loss);

  // Makes `value` part of the state. A repeated step finds the value that it had at the step's
  // start; a process that replaces another finds its predecessor's, of the last step's end. Call it
  // before the first steps(). `value` must outlive this State; no name comes twice. Change it only
  // in the bodies of steps(): a process that replaces another runs the code between two loops
  // again.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void keep(const std::string& name, T& value) { keep_bytes(name, &value, sizeof value); }

  // Writes the state after the last step as a safetensors file, whose data begin at a multiple of
  // 4096 bytes. Parameters and buffers have their names; the rest are
  // "optimizer.<parameter>.<momentum_buffer, exp_avg or exp_avg_sq>" and "kept.<name>" (bytes).
  // Rank 0 writes, with its own buffers; the others return at once. The file appears whole or not
  // at all, and outlives a loss of power.
  void save(const std::string& path);

  [[nodiscard]] std::uint64_t version();  // Steps made so far, over all processes and epochs.
  [[nodiscard]] std::uint64_t epoch();   // Of the step under way or, between two, the next; from 0.
  [[nodiscard]] bool replaying() const;  // In a body: whether it has run for this step before.
  // Equal for equal states (parameters, optimizer, this rank's buffers and kept values) at equal
  // versions, different for others but for a chance of 2^-64. Reads all of it.
  [[nodiscard]] std::uint64_t digest();

 private:
  template <class Dataset>
  friend class Steps;
  friend class Table;
  struct Parts;
  using Forward = std::function<torch::Tensor(const torch::Tensor&)>;
  using Fetch = std::function<void(const std::vector<std::size_t>& indices)>;

  State(Job& job, std::shared_ptr<torch::nn::Module> module, Optimizer optimizer, Forward forward);

  // A spare rehearses the module's forward(); null: it has none for one tensor.
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

  [[nodiscard]] train::Tables& tables() const;
  void keep_bytes(const std::string& name, void* value, std::size_t bytes);
  // `fetch` loads the samples of these indices for the body. `rehearsal` gives a spare's rehearsal
  // the tensor that was loaded; an undefined one if it is no tensor.
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
    const auto size = data_.size();  // A c10::optional in older releases of torch.
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
  Dataset data_;  // A reference if steps() got an lvalue.
  StepsOptions options_;
  Batch batch_;
  bool done_ = true;
};

}  // namespace holdfast
