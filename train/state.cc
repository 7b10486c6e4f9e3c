#include "holdfast/state.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/digest.h"
#include "base/prng.h"
#include "base/text.h"
#include "runtime/worker/arena_store.h"
#include "runtime/worker/replicas.h"
#include "runtime/worker/session.h"
#include "train/blas.h"
#include "train/data.h"
#include "train/gradients.h"
#include "train/job.h"
#include "train/model.h"
#include "train/safetensors.h"
#include "train/tables.h"
#include "train/terms.h"

namespace holdfast {

using detail::fail;
using detail::must;

namespace {

constexpr std::uint64_t kGeneratorSeed = 1;  // Makes its seeds differ from other uses of derive().

arena::Optimizer kind_of(const Optimizer& optimizer) {
  constexpr arena::Optimizer kinds[] = {arena::Optimizer::kSgd, arena::Optimizer::kMomentum,
                                        arena::Optimizer::kAdam, arena::Optimizer::kAdamW};
  return kinds[optimizer.index()];
}

arena::UpdateArguments arguments_of(const Optimizer& optimizer, Version n, double clip_norm) {
  arena::UpdateArguments arguments{.update_count = n, .clip_norm = clip_norm};
  std::visit(
      [&](const auto& o) {
        using Kind = std::decay_t<decltype(o)>;
        arguments.learning_rate = o.schedule ? o.schedule(n) : o.learning_rate;
        arguments.weight_decay = o.weight_decay;
        if constexpr (std::is_same_v<Kind, Momentum>) {
          arguments.momentum = o.momentum;
        } else if constexpr (!std::is_same_v<Kind, Sgd>) {
          arguments.beta1 = o.beta1;
          arguments.beta2 = o.beta2;
          arguments.epsilon = o.epsilon;
        }
      },
      optimizer);
  return arguments;
}

const char* dtype_of(const train::NamedTensor& t) {
  constexpr std::pair<torch::ScalarType, const char*> kNames[] = {
      {torch::kFloat, "F32"},     {torch::kDouble, "F64"}, {torch::kHalf, "F16"},
      {torch::kBFloat16, "BF16"}, {torch::kLong, "I64"},   {torch::kInt, "I32"},
      {torch::kShort, "I16"},     {torch::kChar, "I8"},    {torch::kByte, "U8"},
      {torch::kBool, "BOOL"}};
  for (const auto& [type, name] : kNames) {
    if (type == t.tensor.scalar_type()) return name;
  }
  throw Failure(cat("'", t.name, "' has a type that safetensors files do not know"));
}

std::vector<const char*> moment_names(arena::Optimizer optimizer) {
  if (optimizer == arena::Optimizer::kMomentum) return {"momentum_buffer"};
  if (arena::moment_count(optimizer) == 0) return {};
  return {"exp_avg", "exp_avg_sq"};
}

std::string moment_name(const std::string& parameter, const char* moment) {
  return cat("optimizer.", parameter, ".", moment);
}

}  // namespace

struct State::Parts {
  Parts(std::shared_ptr<detail::JobParts> j, std::shared_ptr<torch::nn::Module> module, Optimizer o,
        Forward f)
      : job(std::move(j)),
        model(std::move(module)),
        optimizer(std::move(o)),
        forward(std::move(f)),
        exceptions(std::uncaught_exceptions()) {}

  void open();
  void rehearse(const std::function<torch::Tensor()>& input);
  void restore();
  void compare_terms();
  void check_place();
  void check_module();
  void note_gradients(std::span<float> bucket);
  void note_end(const arena::StagedStep& step);
  bool begin_step();
  void end_step();
  [[nodiscard]] bool at_end();
  [[nodiscard]] arena::Position position_after_step();
  [[nodiscard]] std::span<const std::byte> private_bytes();
  [[nodiscard]] runtime::Replicas::Table replica_table();
  [[nodiscard]] std::vector<train::SavedArray> saved_arrays();
  [[nodiscard]] Version version() const { return session->version(); }

  std::shared_ptr<detail::JobParts> job;
  train::Model model;
  Optimizer optimizer;
  Forward forward;
  int exceptions;                             // std::uncaught_exceptions() when it was made.
  std::unique_ptr<runtime::Session> session;  // Null until the rank is needed.
  std::optional<train::Gradients> gradients;
  std::optional<runtime::Replicas> replicas;
  train::Tables tables;

  // The loop under way.
  StepsOptions options;
  Generation compared = 0;  // The generation in which the ranks last compared their terms.
  Generation walked = 0;    // The generation in which this loop last looked for new tensors.
  train::Sharding sharding;
  Fetch fetch;
  // The private bytes from which a repeat of the loop's first step starts. Between two loops the
  // user may have changed kept values and buffers, and no version has these changes yet.
  std::vector<std::byte> start;
  Version start_version = kNoVersion;
  bool in_body = false;
  bool stepped = false;   // step() was called in this body,
  bool complete = false;  // and has returned.
  bool replaying = false;
  double loss = 0;
  std::uint64_t samples = 0;  // The digest of the samples that this step fetched.
  bool sampled = false;       // Session::sample() wants notes of the step under way.
};

// ---- Opening ------------------------------------------------------------------------------------

void State::Parts::open() {
  if (session) return;
  if (std::exchange(job->has_state, true)) {
    throw Failure(
        "this process trains a second State, but a job has one: put both modules into one");
  }
  // Buffers and kept values differ between ranks from step 1 on, so no other rank can give them.
  const auto secrecy = model.has_own() ? runtime::Secrecy::kOwnLater : runtime::Secrecy::kShared;
  const auto layout = model.layout(kind_of(optimizer));
  auto prepared = runtime::prepare_arena(*job->worker, layout);
  session = must(runtime::Session::open(
      *job->worker, runtime::in_arena(layout, secrecy, 0, std::move(prepared))));
  tables.open(*session);
  arena::Arena& arena = runtime::arena_of(*session);
  while (must(session->meet({})) == runtime::Met::kToFill) {
    const std::string slow = session->identity().rank == 0 ? train::slow_blas() : "";
    if (!slow.empty()) std::fprintf(stderr, "holdfast: warning: %s\n", slow.c_str());
    model.write_parameters(arena);
    model.pack(arena.private_bytes(0));
  }
  model.adopt(arena);
  model.unpack(arena.private_bytes(version()));
  const bool is_alone = session->identity().world_size == 1;
  gradients.emplace(model.parameters(), arena, [this, is_alone](std::span<float> range) {
    if (sampled) note_gradients(range);
    if (!is_alone) session->reduce(range);
  });
  replicas.emplace(*job->worker, *session);
  replicas->hold(replica_table());
}

// A spare makes one forward and backward pass while it waits for a rank, because in its first pass
// torch sets up threads, kernels and memory. The pass must leave no trace. It need not succeed: the
// loop's body may use the module in another way.
void State::Parts::rehearse(const std::function<torch::Tensor()>& input) {
  std::vector<std::byte> before(model.layout(kind_of(optimizer)).private_bytes);
  model.pack(before);
  auto generator = at::detail::getDefaultCPUGenerator();
  const torch::Tensor numbers = generator.get_state();
  try {
    fetch(sharding.indices(0, 0, 0));
    const torch::Tensor batch = input();
    if (batch.defined()) {
      const torch::Tensor out = forward(batch);
      const bool classes = out.dim() == 2;  // Then the program's loss is most likely this one.
      const auto label = torch::zeros({out.size(0)}, torch::kLong);
      (classes ? torch::nn::functional::cross_entropy(out, label) : out.sum()).backward();
    }
  } catch (const std::exception&) {
  }
  for (const auto& p : model.parameters()) p.tensor.mutable_grad().reset();
  generator.set_state(numbers);
  model.unpack(before);
}

void State::Parts::restore() {
  // Without protection there is nothing to restore. This is reached by a `break` in a loop's body.
  if (!job->worker->settings().protect) return;
  session->uses_committed();
  model.unpack(version() == start_version ? std::span<const std::byte>(start)
                                          : runtime::arena_of(*session).private_bytes(version()));
}

// The private bytes of version(). They are in the arena, since the module may be in the middle of a
// step. Without protection the arena has none, so the module's present ones are taken.
std::span<const std::byte> State::Parts::private_bytes() {
  const auto bytes = runtime::arena_of(*session).private_bytes(version());
  if (!job->worker->settings().protect) model.pack(bytes);
  return bytes;
}

// ---- Steps --------------------------------------------------------------------------------------

bool State::Parts::at_end() {
  return version() >= options.max_steps ||
         runtime::arena_of(*session).position().epoch >= options.epochs;
}

// Compares the terms once in every generation, so that a process that joins later is compared, too.
// Not once in every loop: a process that replaces another may make the same step in another of its
// loops. For the same reason `epochs` and `max_steps` are compared only at the job's start.
void State::Parts::compare_terms() {
  const auto size = static_cast<std::size_t>(session->identity().world_size);
  if (size == 1 || compared == session->generation()) return;
  compared = session->generation();
  const bool starts = compared == 1;
  const train::Terms mine = {.samples = sharding.samples,
                             .batch = options.batch,
                             .shuffle_seed = options.shuffle_seed,
                             .epochs = starts ? options.epochs : 0,
                             .max_steps = starts ? options.max_steps : 0,
                             .update = arguments_of(optimizer, version() + 1, options.clip_norm)};
  std::vector<train::Terms> all(size);
  const auto outcome = session->all_gather(std::as_bytes(std::span(&mine, 1)),
                                           std::as_writable_bytes(std::span(all)));
  if (outcome != collective::Outcome::kDone) return;  // end_step() says why, or recovers.
  const std::string different = train::disagreement(all);
  if (!different.empty()) fail(*job->worker, different);
}

// Fails if the present epoch was begun with another data set and is past the end of this one.
void State::Parts::check_place() {
  const arena::Position at = runtime::arena_of(*session).position();
  if (at.index < sharding.steps_per_epoch()) return;
  fail(*job->worker, cat("epoch ", at.epoch, " has had ", at.index,
                         " steps with another data set or batch, and with this one (",
                         sharding.samples, " samples) it has ", sharding.steps_per_epoch(),
                         ": end a data set's loop with its epoch, by StepsOptions::epochs"));
}

// Called after the body, because modules that change mostly do so in their forward pass.
void State::Parts::check_module() {
  const bool new_ones = std::exchange(walked, session->generation()) != session->generation();
  const std::string stray = model.strayed(runtime::arena_of(*session), new_ones);
  if (!stray.empty()) fail(*job->worker, stray);
}

bool State::Parts::begin_step() {
  if (at_end()) {
    replaying = false;
    must(replicas->compare_for_certain());
    return false;
  }
  check_place();
  const runtime::Began began = must(session->begin_step());
  if (began == runtime::Began::kTooLate) {
    fail(*job->worker, cat(session->why_too_late(), "; all ranks have to make the same steps"));
  }
  if (began == runtime::Began::kReformed) restore();
  replicas->begun();
  if (replicas->is_due(false)) must(replicas->compare());
  if (session->rehearsal() == nullptr) compare_terms();
  sampled = session->sample();
  const arena::Position at = runtime::arena_of(*session).position();
  const auto rank = static_cast<std::uint64_t>(session->identity().rank);
  torch::manual_seed(derive(options.shuffle_seed, kGeneratorSeed, rank, version() + 1));
  const auto indices = sharding.indices(at.epoch, at.index, rank);
  samples = train::digest_of(indices);
  fetch(indices);
  if (sampled) session->note("its samples", std::as_bytes(std::span(&samples, 1)));
  gradients->begin_step();
  in_body = true;
  tables.begin_body();
  stepped = complete = false;
  return true;
}

// A rehearsal compares gradients before the sum: a successor has to compute the same bits
// (docs/rehearsals.md).
void State::Parts::note_gradients(std::span<float> bucket) {
  arena::Arena& arena = runtime::arena_of(*session);
  for (std::size_t i = arena.layout().parameters.size(); i-- > 0;) {
    const auto gradient = arena.gradient(i);
    const bool is_in = gradient.data() >= bucket.data() &&
                       gradient.data() + gradient.size() <= bucket.data() + bucket.size();
    if (!is_in) continue;
    session->note(cat("the gradient of ", arena.layout().parameters[i].name, " before the sum"),
                  std::as_bytes(gradient));
  }
}

void State::Parts::note_end(const arena::StagedStep& step) {
  session->note("the update's arguments", std::as_bytes(std::span(&step.arguments, 1)));
  session->note("", {});  // Results follow (hf_note).
  session->note("the module's buffers and kept values after the step", step.private_bytes);
}

arena::Position State::Parts::position_after_step() {
  arena::Position position = runtime::arena_of(*session).position();
  position.samples += options.batch;
  if (++position.index >= sharding.steps_per_epoch()) {
    position.index = 0;
    ++position.epoch;
  }
  return position;
}

void State::Parts::end_step() {
  const Version n = version() + 1;
  if (!stepped) {
    throw Failure(cat("the loop's body has ended without state.step(loss) in step ", n,
                      ": every body makes one step"));
  }
  // Some gradients may not be summed yet, or may be those of another step.
  if (!complete) {
    throw Failure(cat("the loop's body has gone on after state.step(loss) had failed in step ", n,
                      ": let what it throws leave the loop"));
  }
  in_body = false;
  check_module();
  tables.end_body(n);
  arena::StagedStep step;
  step.private_bytes = runtime::arena_of(*session).private_bytes(n);
  if (job->worker->settings().protect) model.pack(runtime::arena_of(*session).private_bytes(n));
  step.arguments = arguments_of(optimizer, n, options.clip_norm);
  step.position = position_after_step();
  if (sampled) note_end(step);
  replaying = must(session->end_step(step, loss, samples)) == runtime::Ended::kVoid;
  if (replaying) restore();
}

State::State(Job& job, std::shared_ptr<torch::nn::Module> module, Optimizer optimizer,
             Forward forward)
    : parts_(std::make_shared<Parts>(job.parts_, std::move(module), std::move(optimizer),
                                     std::move(forward))) {}

State::~State() {
  Parts& p = *parts_;
  if (!p.session) return;
  if (std::uncaught_exceptions() <= p.exceptions) {
    if (const Status ended = p.session->end(); !ended) {
      std::fprintf(stderr, "holdfast: %s\n", ended.error().what.c_str());
    }
  }
  p.replicas.reset();
  p.gradients.reset();
  p.model.release();
  p.session.reset();
}

train::Tables& State::tables() const {
  return parts_->tables;
}

void State::begin_loop(const StepsOptions& options, std::optional<std::size_t> size, Fetch fetch,
                       std::function<torch::Tensor()> rehearsal) {
  Parts& p = *parts_;
  if (!size) throw Failure("the data set does not know its size, so its order can not be fixed");
  if (options.batch == 0) throw Failure("StepsOptions::batch is 0: a step takes at least 1 sample");
  if (!(options.clip_norm >= 0)) {
    throw Failure(
        "StepsOptions::clip_norm is no norm: give a number above 0, or 0 to clip nothing");
  }
  p.options = options;
  p.fetch = std::move(fetch);
  p.replaying = false;
  p.sharding = {
      .samples = *size, .batch = std::min(options.batch, *size), .seed = options.shuffle_seed};
  const bool reentered = p.session != nullptr;
  if (p.forward && p.job->worker->waits_spare() && *size > 0) p.rehearse(rehearsal);
  p.open();
  p.sharding.batch = options.batch;
  p.sharding.ranks = static_cast<std::uint64_t>(p.session->identity().world_size);
  if (p.sharding.steps_per_epoch() == 0) {
    throw Failure(cat("the data set has ", *size, " samples, fewer than one step takes (",
                      options.batch, " for each of ", p.sharding.ranks,
                      " ranks): take smaller batches"));
  }
  p.walked = 0;
  if (reentered) {
    p.check_module();
    p.walked = 0;  // Looks again after the first step: its forward pass may add layers.
    p.start.resize(runtime::arena_of(*p.session).layout().private_bytes);
    p.model.pack(p.start);
    p.start_version = p.version();
  }
}

void State::end_loop() {
  Parts& p = *parts_;
  if (std::exchange(p.in_body, false)) p.restore();
  p.tables.leave_body();
  p.fetch = nullptr;
}

bool State::advance() {
  if (parts_->in_body) parts_->end_step();
  return parts_->begin_step();
}

void State::step(const torch::Tensor& loss) {
  Parts& p = *parts_;
  if (!p.in_body) throw Failure("state.step(loss) was called outside the body of state.steps()");
  if (loss.numel() != 1) {
    throw Failure(cat("the loss has ", loss.numel(), " elements: reduce it to one, by mean() say"));
  }
  if (std::exchange(p.stepped, true)) {
    throw Failure(
        "state.step(loss) was called twice in one body: a step has one loss, add them up");
  }
  p.loss = loss.item<double>();
  p.gradients->backward(loss, 1.0 / static_cast<double>(p.sharding.ranks));
  p.complete = true;
}

void State::keep_bytes(const std::string& name, void* value, std::size_t bytes) {
  if (parts_->session) {
    throw Failure(
        cat("keep(\"", name, "\") came after the first step: keep values before steps()"));
  }
  parts_->model.keep({name, static_cast<std::byte*>(value), bytes});
}

std::uint64_t State::version() {
  parts_->open();
  return parts_->version();
}

std::uint64_t State::epoch() {
  parts_->open();
  return runtime::arena_of(*parts_->session).position().epoch;
}

bool State::replaying() const {
  return parts_->replaying;
}

std::uint64_t State::digest() {
  parts_->open();
  return derive(runtime::arena_of(*parts_->session).digest(),
                holdfast::digest(parts_->private_bytes()), parts_->version());
}

// ---- Saving -------------------------------------------------------------------------------------

runtime::Replicas::Table State::Parts::replica_table() {
  const std::size_t parameters = model.parameters().size();
  runtime::Replicas::Table table{.step = version()};
  for (const auto& p : model.parameters()) table.names.push_back(p.name);
  for (const char* moment : moment_names(kind_of(optimizer))) {
    for (const auto& p : model.parameters()) table.names.push_back(moment_name(p.name, moment));
  }
  table.bytes_of = [&arena = runtime::arena_of(*session), parameters](std::size_t t) {
    const std::size_t i = t % parameters;
    return std::as_writable_bytes(t < parameters ? arena.parameter(i)
                                                 : arena.moment(t / parameters - 1, i));
  };
  return table;
}

std::vector<train::SavedArray> State::Parts::saved_arrays() {
  arena::Arena& arena = runtime::arena_of(*session);
  std::vector<train::SavedArray> arrays;
  const auto& parameters = model.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto shape = parameters[i].tensor.sizes().vec();
    arrays.push_back({parameters[i].name, "F32", shape, std::as_bytes(arena.parameter(i))});
  }
  std::span<const std::byte> rest = private_bytes();
  const auto take = [&](std::size_t bytes) {
    const auto taken = rest.first(bytes);
    rest = rest.subspan(bytes);
    return taken;
  };
  for (const auto& t : model.private_tensors()) {
    arrays.push_back({t.name, dtype_of(t), t.tensor.sizes().vec(), take(t.tensor.nbytes())});
  }
  for (const auto& k : model.kept()) {
    arrays.push_back(
        {cat("kept.", k.name), "U8", {static_cast<std::int64_t>(k.bytes)}, take(k.bytes)});
  }
  const auto moments = moment_names(kind_of(optimizer));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (std::size_t k = 0; k < moments.size(); ++k) {
      arrays.push_back({moment_name(parameters[i].name, moments[k]), "F32",
                        parameters[i].tensor.sizes().vec(), std::as_bytes(arena.moment(k, i))});
    }
  }
  return arrays;
}

void State::save(const std::string& path) {
  Parts& p = *parts_;
  p.open();
  if (p.session->identity().rank != 0) return;
  const arena::Position position = runtime::arena_of(*p.session).position();
  const train::Note metadata[] = {{"holdfast.version", std::to_string(p.version())},
                                  {"holdfast.epoch", std::to_string(position.epoch)},
                                  {"holdfast.index", std::to_string(position.index)},
                                  {"holdfast.optimizer", arena::name(kind_of(p.optimizer))}};
  p.session->uses_committed();
  must(train::write_safetensors(path, p.saved_arrays(), metadata));
  if (p.session->has_lost_pages()) {
    must(Status(Error{Blame::kWorld, cat("memory errors have taken pages of the state while ", path,
                                         " was written: it is not whole")}));
  }
}

}  // namespace holdfast
