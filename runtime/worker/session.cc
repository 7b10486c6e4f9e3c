#include "runtime/worker/session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/text.h"
#include "io/loop.h"
#include "os/slice.h"
#include "runtime/worker/ownership.h"

namespace holdfast::runtime {
namespace {

using collective::Group;
using collective::Outcome;
using namespace std::chrono_literals;

constexpr Duration kProgressEvery = 250ms;
constexpr Duration kFaultPatience = 20s;  // From a group's failure to the word of its cause.

// What the control thread may end at any time: the forming of a group, and the group. Where the
// training thread waits for others meanwhile it says Parked in its place, as soon as no sum is
// under way: nothing is touched then, and all other ranks would wait until the training thread got
// a processor to say so itself.
class Breaker {
 public:
  // `speak` posts the training thread's Parked.
  explicit Breaker(std::function<void()> speak) : speak_(std::move(speak)) {}

  // Control thread; never blocks for longer than the few lines that hold the mutex.
  void abort(Generation generation) {
    const std::lock_guard lock(mutex_);
    if (handler_) handler_(generation);
    aborted_ = std::max(aborted_, generation);
    if (forming_ > aborted_) return;
    stop_.request_stop();
    // The training thread waits for this one.
    if (sums_thread_ != 0) (void)io::take_short_slice(sums_thread_);
    if (group_ == nullptr) return;
    group_->abort();
    if (group_->is_idle()) speak();
  }
  // Training thread: from here to returns() it waits. Nothing changes if it is spoken for.
  void waits() {
    auto busy = Stand::kBusy;
    (void)stand_.compare_exchange_strong(busy, Stand::kWaits);
  }
  // False: it was spoken for meanwhile, so that whatever it waited for, the plan decides now.
  [[nodiscard]] bool returns() {
    auto waits = Stand::kWaits;
    return stand_.compare_exchange_strong(waits, Stand::kBusy);
  }
  // Training thread, before it says Parked itself: whether that was done for it.
  [[nodiscard]] bool take_word() { return stand_.exchange(Stand::kBusy) == Stand::kSpokenFor; }
  // The token under which the group of `generation` is to be formed.
  std::stop_token form(Generation generation) {
    const std::lock_guard lock(mutex_);
    forming_ = generation;
    stop_ = std::stop_source{};
    if (aborted_ >= generation) stop_.request_stop();
    return stop_.get_token();
  }
  // Null: there is none any more. Its threads have ended, or will before it has.
  void formed(Group* group) {
    const std::lock_guard lock(mutex_);
    group_ = group;
    if (group == nullptr) sums_thread_ = 0;
    if (group != nullptr && aborted_ >= forming_) group->abort();
  }
  // By the thread in which the group makes its started sums: at first, and when all have ended, one
  // of them in vain.
  void begins_sums() {
    const std::lock_guard lock(mutex_);
    if (group_ != nullptr) sums_thread_ = ::gettid();
  }
  void ended_sums() {
    const std::lock_guard lock(mutex_);
    if (group_ != nullptr && aborted_ >= forming_ && group_->is_idle()) speak();
  }
  void on_abort(std::function<void(Generation)> handler) {
    const std::lock_guard lock(mutex_);
    handler_ = std::move(handler);
  }
  [[nodiscard]] bool aborted(Generation generation) {
    const std::lock_guard lock(mutex_);
    return aborted_ >= generation;
  }

 private:
  enum class Stand : std::uint8_t { kBusy, kWaits, kSpokenFor };

  void speak() {
    auto waits = Stand::kWaits;
    if (stand_.compare_exchange_strong(waits, Stand::kSpokenFor)) speak_();
  }

  const std::function<void()> speak_;
  std::atomic<Stand> stand_ = Stand::kBusy;
  std::mutex mutex_;
  Generation aborted_ = 0;
  Generation forming_ = 0;
  std::stop_source stop_;
  Group* group_ = nullptr;
  pid_t sums_thread_ = 0;
  std::function<void(Generation)> handler_;
};

}  // namespace

struct Session::Parts {
  Parts(Worker& w, Identity i, arena::Arena a, Secrecy s)
      : worker(w),
        identity(std::move(i)),
        arena(std::move(a)),
        secrecy(s),
        regions(std::make_shared<collective::Regions>(identity.directory, identity.rank)) {}

  [[nodiscard]] member::Holding holding() const { return {arena.version(), arena.staged()}; }
  void say_parked();
  Status agree();
  Status mend(const wire::Repair& repair);
  Result<bool> form();
  void drop_group();
  Outcome wait_for_sums();
  template <class Wait>
  void await(Wait wait);
  Outcome note(Outcome outcome);
  Status recover();
  void committed(double loss, std::uint64_t samples);
  void trace_step(double loss, std::uint64_t samples);

  Worker& worker;
  Identity identity;
  arena::Arena arena;
  Secrecy secrecy;
  std::shared_ptr<collective::Regions> regions;
  arena::Position begin_position;
  Breaker breaker{[this] { say_parked(); }};
  std::shared_ptr<Group> group;
  Generation generation = 0;  // The newest that the machine said to go on in.
  pid_t owner = ::getpid();
  Rank ended_rank = kNoRank;  // Its training has ended, so that this generation has no group.
  bool joined = false;
  bool ended = false;
  std::vector<collective::Ticket> sums;  // Of the step under way.
  Outcome mark = Outcome::kDone;         // Of the step under way: what its body met.
  Instant waits_since{};  // When the training thread last came to where it waits for others.
  Generation told_generation = 0;  // Of the last Committed that was posted.
  Instant told_at{};
};

std::string arena_path(const Identity& identity, Rank rank) {
  return cat(identity.directory, "/rank-", rank, ".arena");
}

// A world of its own has its arena for itself.
Status own_arena(Worker& worker, const Identity& identity) {
  if (worker.solo()) return {};
  // Its predecessor's threads mostly need a moment only, to get a processor to die on.
  const auto pause = [&worker, wait = Duration(100us)]() mutable -> Status {
    const auto order = worker.next_order(wait);  // Before it has parked there is none.
    wait = std::min<Duration>(2 * wait, 2ms);
    return order ? Status{} : Status{order.error()};
  };
  return take_ownership(arena_path(identity, identity.rank), pause,
                        worker.settings().replacement_timeout);
}

// ---- Agreeing on a version ----------------------------------------------------------------------

// By the training thread, or by the control thread while that one waits.
void Session::Parts::say_parked() {
  worker.post(member::Parked{holding()});
  worker.trace().event("parked", {{"rank", identity.rank},
                                  {"generation", generation},
                                  {"version", arena.version()},
                                  {"waited_since_ns", waits_since.count()}});
}

// Parks until the machine says go: the arena then holds the version from which all ranks go on.
Status Session::Parts::agree() {
  if (worker.solo()) {
    if (arena.fresh()) arena.begin_version0(begin_position);
    ++generation;
    return {};
  }
  if (!breaker.take_word()) say_parked();
  for (;;) {
    auto came = worker.next_order();
    if (!came) return came.error();
    const auto& order = *came;
    HF_ASSERT(order.has_value());
    if (const auto* wanted = std::get_if<member::Mend>(&*order)) {
      if (auto mended = mend(wanted->repair); !mended) return mended.error();
      worker.post(member::RepairDone{holding()});
    } else if (const auto* go = std::get_if<member::Go>(&*order)) {
      HF_ASSERT(go->version == arena.version());
      worker.note_step(arena.version());
      if (arena.staged() != arena.version()) arena.unstage();
      generation = go->generation;
      ended_rank = go->ended;
      if (generation > 1 && !worker.settings().protect) {
        return worker.fail(cat("no recovery from a fault after step ", arena.version(),
                               ": HOLDFAST_PROTECT is 0, so no step is kept that could be gone ",
                               "back to; start the job again without it"));
      }
      worker.trace().event(
          "resume",
          {{"rank", identity.rank}, {"generation", generation}, {"version", arena.version()}});
      return {};
    }
  }
}

Status Session::Parts::mend(const wire::Repair& repair) {
  Status mended;
  switch (repair.kind) {
    case wire::RepairKind::kBegin:
      if (arena.fresh()) arena.begin_version0(begin_position);
      break;
    case wire::RepairKind::kFinish:
      arena.finish();
      break;
    case wire::RepairKind::kReceive:
      if (secrecy == Secrecy::kOwn && repair.version != 0) {
        mended = Error{Blame::kWorld, "its own private state is lost, and nobody else has it"};
        break;
      }
      mended = arena.copy_from(arena_path(identity, repair.source), repair.version,
                               secrecy == Secrecy::kShared);
      break;
  }
  if (!mended || arena.version() != repair.version) {
    return worker.fail(cat("rank ", identity.rank, " could not be brought to version ",
                           repair.version, " (", name(repair.kind),
                           "): ", mended ? "its arena holds another" : mended.error().what));
  }
  worker.trace().event("repair", {{"rank", identity.rank},
                                  {"generation", repair.generation},
                                  {"version", repair.version},
                                  {"kind", name(repair.kind)},
                                  {"source", repair.source}});
  return {};
}

// False: a fault came, agree() again.
Result<bool> Session::Parts::form() {
  Group::Options options{
      .directory = identity.directory,
      .generation = generation,
      .run_id = identity.run_id,
      .rank = identity.rank,
      .world_size = identity.world_size,
      .registered_offset = arena.layout().gradients_offset(),
      .registered_bytes = arena.layout().gradients_bytes(),
      .registered_memory = reinterpret_cast<std::byte*>(arena.gradients().data()),
      .regions = regions,
      .on_thread = [this] { breaker.begins_sums(); },
      .on_failed = [this] { breaker.ended_sums(); }};
  options.join_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(worker.settings().replacement_timeout);
  for (Rank rank = 0; rank < identity.world_size; ++rank) {
    options.registered_files.push_back(arena_path(identity, rank));
  }
  const Instant began = io::Loop::now();
  auto formed = Group::join(options, breaker.form(generation));
  if (!formed) {
    // Where a fault is the cause, the scheduler says so soon.
    if (worker.solo()) return formed.error();
    const bool mistaken = formed.error().blame == Blame::kUser;
    if (!mistaken && worker.wait_for_abort(generation, kFaultPatience)) return false;
    return worker.fail(formed.error().what);
  }
  group = *std::move(formed);
  breaker.formed(group.get());
  const auto took = std::chrono::duration<double, std::milli>(io::Loop::now() - began).count();
  worker.trace().event("reform",
                       {{"rank", identity.rank}, {"generation", generation}, {"ms", took}});
  return true;
}

void Session::Parts::drop_group() {
  if (!group) return;
  breaker.formed(nullptr);
  group->abort();  // Leaving is for the end of the training: others must not take it for that.
  group.reset();
  sums.clear();
}

// ---- Steps --------------------------------------------------------------------------------------

Outcome Session::Parts::note(Outcome outcome) {
  if (mark == Outcome::kDone) mark = outcome;
  return outcome;
}

Outcome Session::Parts::wait_for_sums() {
  for (const auto ticket : sums) note(group->wait(ticket));
  sums.clear();
  return mark;
}

// What only this step hangs on.
template <class Wait>
void Session::Parts::await(Wait wait) {
  breaker.waits();
  wait();
  if (!breaker.returns()) note(Outcome::kAborted);
}

Status Session::Parts::recover() {
  breaker.waits();  // For word of the fault that ended the group.
  const auto stopped = worker.wait_for_abort(generation, worker.settings().replacement_timeout);
  (void)breaker.returns();  // Where it was spoken for, agree() will see.
  if (!stopped) return stopped.error();
  drop_group();
  return agree();
}

void Session::Parts::trace_step(double loss, std::uint64_t samples) {
  worker.trace().event("step", {{"rank", identity.rank},
                                {"step", arena.version()},
                                {"generation", generation},
                                {"loss", loss},
                                {"samples", samples}});
}

void Session::Parts::committed(double loss, std::uint64_t samples) {
  worker.note_step(arena.version());
  trace_step(loss, samples);
  const Instant now = io::Loop::now();
  if (told_generation == generation && now - told_at < kProgressEvery) return;
  told_generation = generation;
  told_at = now;
  worker.post(member::Committed{arena.version(), loss});
}

Session::Session(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Session::~Session() {
  if (parts_->owner != ::getpid()) {  // A forked child's copy: the group is its parent's.
    (void)parts_.release();
    return;
  }
  parts_->worker.on_abort(nullptr);
  parts_->drop_group();
}

Result<std::unique_ptr<Session>> Session::open(Worker& worker, arena::Layout layout,
                                               Secrecy secrecy) {
  auto identity = worker.identity();
  if (!identity) return identity.error();
  if (auto owned = own_arena(worker, *identity); !owned) return worker.fail(owned.error().what);
  auto arena = arena::Arena::open(arena_path(*identity, identity->rank), layout, identity->run_id);
  if (!arena) return worker.fail(arena.error().what);
  auto parts = std::make_unique<Parts>(worker, *std::move(identity), *std::move(arena), secrecy);
  worker.on_abort([breaker = &parts->breaker](Generation g) { breaker->abort(g); });
  return std::unique_ptr<Session>(new Session(std::move(parts)));
}

const Identity& Session::identity() const {
  return parts_->identity;
}
arena::Arena& Session::arena() {
  return parts_->arena;
}
Version Session::version() const {
  return parts_->arena.version();
}
Generation Session::generation() const {
  return parts_->generation;
}

Status Session::join(const arena::Position& position) {
  HF_ASSERT(!parts_->joined);
  parts_->begin_position = position;
  if (auto agreed = parts_->agree(); !agreed) return agreed.error();
  parts_->joined = true;
  return {};
}

Result<Began> Session::begin_step() {
  Parts& p = *parts_;
  HF_ASSERT(p.joined && !p.ended);
  p.waits_since = io::Loop::now();
  if (p.group) p.wait_for_sums();  // Of a step that was begun and given up.
  p.mark = Outcome::kDone;
  Began began = Began::kAtOnce;
  while (!p.group || p.group->aborted()) {
    if (p.group || (!p.worker.solo() && p.breaker.aborted(p.generation))) {
      if (auto recovered = p.recover(); !recovered) return recovered.error();
      began = Began::kReformed;
    }
    if (p.ended_rank != kNoRank) return Began::kTooLate;
    const auto formed = p.form();
    if (!formed) return formed.error();
  }
  return began;
}

std::string Session::why_too_late() const {
  return cat("rank ", parts_->ended_rank, " has ended its training: rank ", parts_->identity.rank,
             " can exchange nothing with it any more");
}

void Session::reduce(std::span<float> bucket) {
  HF_ASSERT(parts_->group != nullptr);
  parts_->sums.push_back(parts_->group->start_all_reduce(bucket));
}

Result<Ended> Session::end_step(const arena::StagedStep& step, double loss, std::uint64_t samples) {
  Parts& p = *parts_;
  HF_ASSERT(p.group != nullptr);
  const Version n = p.arena.version() + 1;
  p.waits_since = io::Loop::now();
  p.await([&] { p.wait_for_sums(); });
  if (p.mark == Outcome::kDone) {
    p.arena.stage(n, step);
    // Complete anywhere: every rank has staged n, so n can be finished from any arena.
    if (p.worker.settings().protect) p.await([&] { p.note(p.group->barrier()); });
  }
  if (p.mark == Outcome::kDone) {
    p.arena.update(static_cast<std::size_t>(p.worker.settings().update_threads));
    p.committed(loss, samples);
    return Ended::kCommitted;
  }
  if (p.mark != Outcome::kAborted) return p.worker.fail(p.group->why());
  if (auto recovered = p.recover(); !recovered) return recovered.error();
  // What all had staged may have been finished, by the plan.
  if (p.arena.version() != n) return Ended::kVoid;
  p.trace_step(loss, samples);
  return Ended::kCommitted;
}

Outcome Session::barrier() {
  return parts_->note(parts_->group->barrier());
}
Outcome Session::broadcast(std::span<std::byte> bytes, Rank root) {
  return parts_->note(parts_->group->broadcast(bytes, root));
}
Outcome Session::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  return parts_->note(parts_->group->all_gather(mine, all));
}

std::shared_ptr<Group> Session::group() const {
  return parts_->group;
}
const std::shared_ptr<collective::Regions>& Session::regions() const {
  return parts_->regions;
}
void Session::on_abort(std::function<void(Generation)> handler) {
  parts_->breaker.on_abort(std::move(handler));
}

Status Session::end() {
  Parts& p = *parts_;
  if (std::exchange(p.ended, true)) return {};
  if (p.group) p.group->leave();
  p.worker.trace().event("end", {{"rank", p.identity.rank}, {"version", p.arena.version()}});
  return p.worker.end(p.joined ? p.arena.version() : kNoVersion);
}

}  // namespace holdfast::runtime
