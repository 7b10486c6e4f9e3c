#include "runtime/worker/session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "collective/current_generation.h"
#include "io/loop.h"
#include "os/lifeline.h"
#include "os/slice.h"
#include "runtime/worker/private_copies.h"
#include "runtime/worker/recorder.h"
#include "wording/hosts.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using collective::Group;
using collective::Outcome;
using What = trainer::Return::What;
using namespace std::chrono_literals;

const std::string kWorld;  // The name of the group of all ranks, on tapes.

collective::CurrentGeneration::Options current_options(Worker& worker, const Identity& identity) {
  return {.directory = identity.directory,
          .run_id = identity.run_id,
          .join_timeout = worker.settings().replacement_timeout,
          .abort_patience = worker.solo() ? Duration{} : worker.settings().node_timeout,
          .played = worker.shared_rehearsal()};
}

}  // namespace

struct Session::Parts {
  Parts(Worker& w, Identity i, std::unique_ptr<StateStore> s)
      : worker(w),
        identity(std::move(i)),
        store(std::move(s)),
        regions(std::make_shared<collective::Regions>(identity.directory, identity.rank)),
        current(std::make_shared<collective::CurrentGeneration>(current_options(w, identity))),
        board(os::lifeline_board(w.settings().lifeline)),
        queue(std::make_shared<collective::Queue>([this] { sums_thread = ::gettid(); },
                                                  [this] { worker.tell(trainer::SumsIdle{}); })) {}

  // Tells the trainer machine of a call, and does its work until it returns to the program.
  trainer::Return call(const trainer::Event& event);
  // Does the machine's work. nullopt: the next is `due`, for which this rank has to fill version 0.
  std::optional<trainer::Return> go_on(bool is_filled);
  [[nodiscard]] bool needs_beginning(const trainer::Repair& work) const;
  void do_work(const trainer::Repair& work);
  void do_work(const trainer::Unstage&) { store->unstage(); }
  void now(Doing doing) const { board->doing.store(doing, std::memory_order_relaxed); }
  void enter(Generation entered) { board->enter(generation = entered); }
  void do_work(const trainer::JoinGroup& work);
  void do_work(const trainer::LeaveGroup&);
  void do_work(const trainer::AwaitSums&);
  void do_work(const trainer::Stage& work);
  void do_work(const trainer::ExchangeCopies& work);
  void do_work(const trainer::Arrive&);
  void do_work(const trainer::Update&);

  [[nodiscard]] Version version() const { return store->holding().version; }
  [[nodiscard]] Error error_of(const trainer::Return& result);
  Outcome note(Outcome outcome);
  void wait_for_sums();
  Status join_copies(const collective::Layout& layout, const std::stop_token& stopped,
                     const Group& formed);
  void say_cover(bool has_other_hosts);
  void drop_group();
  Group::Options group_options(Generation formed);
  void trace_step();
  bool stop(Generation stopped);
  Group& idle_group();
  void open_recorder();
  void end_sample(bool is_made);
  // An operation of the body of a step, in the caller's thread.
  template <class Body>
  Outcome exchange(Body body) {
    Group& idle = idle_group();
    if (!tape) return note(body(idle));
    collective::RecordedGroup recorded(idle, kWorld, *tape);
    return note(body(static_cast<Group&>(recorded)));
  }

  Worker& worker;
  Identity identity;
  std::unique_ptr<StateStore> store;
  std::shared_ptr<collective::Regions> regions;
  std::shared_ptr<collective::CurrentGeneration> current;
  std::shared_ptr<os::Board> board;  // For this host's agent.
  std::function<void(Generation)> on_stop;
  std::atomic<pid_t> sums_thread = 0;  // The queue's thread; 0: it has not begun.
  arena::Position begin_position;
  std::optional<trainer::Repair> due;  // The work that the next call of meet() does first.
  bool was_cleared = false;            // What the program filled before was overwritten.
  std::shared_ptr<Group> group;
  std::optional<wording::Cover> cover;    // What say_cover() said last.
  std::unique_ptr<PrivateCopies> copies;  // Uses the group; null: none are needed.
  Generation generation = 0;              // The newest in which the machine said to go on.
  std::shared_ptr<Recorder> recorder;     // Null: nobody rehearses this rank's steps.
  std::shared_ptr<Recorder> tape;         // The recorder while a step is being recorded.
  bool compares = true;                   // Set by compare_exchanges().
  pid_t owner = ::getpid();
  Rank ended_rank = kNoRank;  // After Began::kTooLate: the rank that has ended.
  bool ended = false;
  // The sums of the step under way. Null: the sum never began, because the group was aborted.
  std::vector<std::shared_ptr<collective::Work>> sums;
  Outcome mark = Outcome::kDone;            // The first failure in the step under way.
  const arena::StagedStep* step = nullptr;  // While end_step() runs, as are the next two.
  double loss = 0;
  std::uint64_t samples = 0;
  std::shared_ptr<collective::Queue> queue;  // Last: its thread uses all above.
};

// ---- Work for the trainer machine ---------------------------------------------------------------

trainer::Outcome outcome_of(Outcome outcome) {
  if (outcome == Outcome::kDone) return trainer::Outcome::kDone;
  return outcome == Outcome::kAborted ? trainer::Outcome::kStopped : trainer::Outcome::kRefused;
}

trainer::Return Session::Parts::call(const trainer::Event& event) {
  worker.tell(event);
  return *go_on(true);
}

std::optional<trainer::Return> Session::Parts::go_on(bool is_filled) {
  for (;;) {
    const trainer::Work work = worker.next_work();
    if (const auto* result = std::get_if<trainer::Return>(&work)) return *result;
    const auto* repair = std::get_if<trainer::Repair>(&work);
    if (!is_filled && repair != nullptr && needs_beginning(*repair)) {
      was_cleared = store->has_remains();
      if (was_cleared) store->clear();
      due = *repair;
      return std::nullopt;
    }
    std::visit(
        [&](const auto& w) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(w)>, trainer::Return>) do_work(w);
        },
        work);
  }
}

// Whether this rank has to fill version 0: all of it, or its private part.
bool Session::Parts::needs_beginning(const trainer::Repair& work) const {
  const bool begins = work.order.act == wire::Act::kBegin || work.order.act == wire::Act::kReceive;
  return begins && work.version == 0 && (work.order.moved || version() == kNoVersion);
}

void Session::Parts::do_work(const trainer::Repair& work) {
  now(Doing::kRecovering);
  Status repaired;
  if (work.order.moved) store->forget_held();
  switch (work.order.act) {
    case wire::Act::kKeep:
      break;
    case wire::Act::kBegin:
      store->begin(begin_position);
      break;
    case wire::Act::kFinish:
      store->finish();
      break;
    case wire::Act::kReceive:
      repaired = store->receive(work.order, work.version);
      break;
  }
  if (repaired && !worker.solo()) {
    worker.trace().event("repair", {{"rank", identity.rank},
                                    {"generation", work.generation},
                                    {"version", work.version},
                                    {"kind", name(work.order.act)},
                                    {"source", work.order.source.holder},
                                    {"private_source", work.order.private_source.holder}});
  }
  const bool too_late = !repaired && worker.neighbours().is_repair_stopped();
  worker.tell(trainer::Repaired{store->holding(), repaired ? "" : repaired.error().what, too_late});
}

Group::Options Session::Parts::group_options(Generation formed) {
  const auto& settings = worker.settings();
  const int agreed = settings.replicas + 2 * int(settings.drift) + 4 * settings.digest_every;
  Group::Options options{.directory = identity.directory,
                         .generation = formed,
                         .run_id = identity.run_id,
                         .rank = identity.rank,
                         .world_size = identity.world_size,
                         .registered = store->gradients(),
                         .regions = regions,
                         .layout = worker.neighbours().layout(),
                         .agreed = static_cast<std::uint64_t>(agreed)};
  options.come_to = {board, &board->operations};
  options.join_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(settings.replacement_timeout);
  return options;
}

void Session::Parts::do_work(const trainer::JoinGroup& work) {
  now(Doing::kRecovering);
  enter(work.generation);
  const Instant began = io::Loop::now();
  auto options = group_options(generation);
  const std::stop_token stopped = current->begin(generation, options.layout);
  auto formed = current->join(options, stopped);
  auto status = formed ? join_copies(options.layout, stopped, **formed) : Status(formed.error());
  const auto held = store->holding().held;
  const bool linked = !options.layout.host_of.empty();
  if (!status) {
    // Without abort(), the others would take the group's end for the end of this rank's training.
    if (formed) (*formed)->abort();
    const Error& error = status.error();
    // Printed here, because the other ranks may only try again and again, and can not say what is
    // wrong.
    if (linked && !stopped.stop_requested()) {
      std::fprintf(stderr, "holdfast: generation %s could not be formed: %s\n",
                   cat(generation).c_str(), error.what.c_str());
    }
    return worker.tell(trainer::NotFormed{error.blame == Blame::kUser, error.what, held, linked});
  }
  group = *std::move(formed);
  current->formed(group);
  // The sums thread gets its usual slice back for steps.
  if (sums_thread != 0) os::take_usual_slice(sums_thread);
  const auto took = std::chrono::duration<double, std::milli>(io::Loop::now() - began).count();
  worker.trace().event("reform",
                       {{"rank", identity.rank}, {"generation", generation}, {"ms", took}});
  say_cover(linked);
  worker.tell(trainer::Formed{group->aborted(), linked, copies != nullptr, held});
}

// Rank 0 says for all what the loss of a host would take along: when the job begins, and after each
// change of that.
void Session::Parts::say_cover(bool has_other_hosts) {
  if (identity.rank != 0 || (!has_other_hosts && !cover)) return;
  const bool own = store->holding().private_is_own;
  const auto now = !own              ? wording::Cover::kNothingOwn
                   : copies          ? wording::Cover::kHeld
                   : has_other_hosts ? wording::Cover::kNotHeld
                                     : wording::Cover::kOneHost;
  if (std::exchange(cover, now) == now || !worker.settings().protect) return;
  std::fprintf(stderr, "holdfast: %s\n", wording::in_words(now, store->own_bytes()).c_str());
}

// Joins PrivateCopies if only this rank has its private part, which would be lost with its host.
Status Session::Parts::join_copies(const collective::Layout& layout, const std::stop_token& stopped,
                                   const Group& formed) {
  const auto& settings = worker.settings();
  const bool wanted = settings.replicas > 0 && settings.protect && store->holding().private_is_own;
  if (!wanted || layout.host_of.empty()) return {};
  auto joined = PrivateCopies::join(
      {.layout = layout,
       .generation = generation,
       .rank = identity.rank,
       .deadline = collective::Links::Deadline::clock::now() + settings.replacement_timeout,
       .stop = stopped,
       .must_stop = [&formed] { return formed.aborted(); }},
      *store);
  if (!joined) return joined.error();
  copies = *std::move(joined);
  return {};
}

void Session::Parts::do_work(const trainer::LeaveGroup&) {
  now(Doing::kRecovering);
  drop_group();
  worker.tell(trainer::LeftGroup{});
}

void Session::Parts::do_work(const trainer::AwaitSums&) {
  now(Doing::kSumming);
  wait_for_sums();
  worker.tell(trainer::SumsDone{outcome_of(mark), mark == Outcome::kDone ? "" : group->why()});
}

void Session::Parts::do_work(const trainer::Stage& work) {
  now(Doing::kStaging);
  store->stage(work.version, *step);
  worker.tell(trainer::Staged{});
}

void Session::Parts::do_work(const trainer::ExchangeCopies& work) {
  now(Doing::kCopying);
  if (!copies->exchange(work.version)) note(Outcome::kAborted);
  worker.tell(trainer::CopiesExchanged{outcome_of(mark), store->holding().held});
}

void Session::Parts::do_work(const trainer::Arrive&) {
  now(Doing::kCommitting);
  if (auto* rehearsal = worker.rehearsal()) rehearsal->arrive();  // A rehearsal ends here.
  note(idle_group().barrier());
  worker.tell(trainer::Arrived{outcome_of(mark), mark == Outcome::kDone ? "" : group->why()});
}

void Session::Parts::do_work(const trainer::Update&) {
  now(Doing::kUpdating);
  store->update(static_cast<std::size_t>(worker.settings().update_threads));
  worker.note_step(version());
  board->steps.fetch_add(1, std::memory_order_relaxed);
  trace_step();
  worker.tell(trainer::Updated{});
}

void Session::Parts::drop_group() {
  copies.reset();
  if (!group) return;
  group->abort();  // Not leave(): the others would take that for the end of this rank's training.
  queue->drain();
  current->formed(nullptr);
  group.reset();
  sums.clear();
}

// Called in the control thread, so it must not block.
bool Session::Parts::stop(Generation stopped) {
  if (on_stop) on_stop(stopped);
  current->abort(stopped);
  const bool idle = queue->is_idle();
  // The training thread waits for the sums thread.
  if (sums_thread != 0) (void)os::take_short_slice(sums_thread);
  return idle;
}

Outcome Session::Parts::note(Outcome outcome) {
  if (mark == Outcome::kDone) mark = outcome;
  return outcome;
}

// Waits for all sums that were started.
void Session::Parts::wait_for_sums() {
  queue->drain();
  for (const auto& sum : sums) note(sum ? sum->wait()->outcome : Outcome::kAborted);
  sums.clear();
}

// The group, for an operation in the caller's thread. Waits for the queue first, because operations
// run in the order of calls.
Group& Session::Parts::idle_group() {
  queue->drain();
  return *group;
}

// Called when this rank has made a step, or has found that a recovery has committed it.
void Session::Parts::trace_step() {
  worker.trace().event("step", {{"rank", identity.rank},
                                {"step", version()},
                                {"generation", generation},
                                {"loss", loss},
                                {"samples", samples}});
}

// The error to return to the program. A failure of the whole job is reported to the scheduler
// first.
Error Session::Parts::error_of(const trainer::Return& result) {
  wire::Reason reason = result.reason;
  if (reason.rank == kNoRank && reason.kind == wire::Reason::Kind::kNotRepaired) {
    reason.rank = identity.rank;
  }
  const bool tells = result.what == What::kFailed && !worker.solo();
  return tells ? worker.fail(reason) : Error{Blame::kWorld, wording::in_words(reason)};
}

// ---- Steps that are rehearsed -------------------------------------------------------------------

// Without a recorder the rank trains as well, so a failure is ignored.
void Session::Parts::open_recorder() {
  const config::Settings& settings = worker.settings();
  if (worker.solo() || worker.rehearsal() != nullptr || !settings.rehearsals) return;
  // Without a lifeline there is no agent to start a rehearsal. Without `protect` no version holds
  // all that a rehearsal needs.
  if (settings.lifeline.empty() || !settings.protect) return;
  auto made = Recorder::make(identity, settings.rehearsal_bytes);
  if (made) recorder = *std::move(made);
}

void Session::Parts::end_sample(bool is_made) {
  if (!tape) return;
  current->record_on(nullptr);
  tape->end(is_made);
  tape.reset();
}

// ---- Calls of the program -----------------------------------------------------------------------

Session::Session(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Session::~Session() {
  if (parts_->owner != ::getpid()) {  // A forked child's copy: the group is its parent's.
    (void)parts_.release();
    return;
  }
  parts_->worker.on_stop(nullptr);
  parts_->drop_group();
  (void)parts_->current->begin(0);
}

Result<std::unique_ptr<Session>> Session::open(Worker& worker, const OpenStore& open_store) {
  auto identity = worker.identity();
  if (!identity) return identity.error();
  auto store = open_store(worker, *identity);
  if (!store) return worker.fail(store.error().what);
  auto parts = std::make_unique<Parts>(worker, *std::move(identity), *std::move(store));
  parts->open_recorder();
  worker.on_stop([raw = parts.get()](Generation g) { return raw->stop(g); });
  return std::unique_ptr<Session>(new Session(std::move(parts)));
}

const Identity& Session::identity() const {
  return parts_->identity;
}
StateStore& Session::store() {
  return *parts_->store;
}
Version Session::version() const {
  return parts_->version();
}
Generation Session::generation() const {
  return parts_->generation;
}

Result<Met> Session::meet(const arena::Position& position) {
  Parts& p = *parts_;
  p.begin_position = position;
  if (p.due) {
    p.do_work(*std::exchange(p.due, std::nullopt));
  } else {
    if (auto* rehearsal = p.worker.rehearsal()) {
      for (const auto& assigned : rehearsal->await_step()) p.worker.tell(assigned);
    }
    p.worker.tell(trainer::JoinCalled{p.store->holding()});
  }
  const auto result = p.go_on(false);
  if (!result) return Met::kToFill;
  if (result->what != What::kJoined) return p.error_of(*result);
  p.now(Doing::kBetween);
  p.enter(p.worker.generation());
  return Met::kJoined;
}

Status Session::join(const arena::Position& position) {
  for (;;) {
    const auto met = meet(position);
    if (!met) return met.error();
    if (*met == Met::kJoined) return {};
    if (parts_->was_cleared) {
      return Error{Blame::kWorld,
                   "what came of another rank's state broke off, and by now no rank has any: the "
                   "version 0 of this one was overwritten by it. Start the job again"};
    }
  }
}

Result<Began> Session::begin_step() {
  Parts& p = *parts_;
  p.wait_for_sums();  // The sums of a step that was begun and given up.
  p.end_sample(false);
  p.mark = Outcome::kDone;
  const auto result = p.call(trainer::StepBegun{p.group && p.group->aborted()});
  p.enter(p.worker.generation());
  p.now(Doing::kComputing);
  switch (result.what) {
    case What::kBegun:
      return Began::kAtOnce;
    case What::kBegunAnew:
      return Began::kReformed;
    case What::kTooLate:
      p.ended_rank = result.ended;
      return Began::kTooLate;
    default:
      return p.error_of(result);
  }
}

bool Session::sample() {
  Parts& p = *parts_;
  if (auto* rehearsal = p.worker.rehearsal()) {
    rehearsal->begin_step();
    return true;
  }
  const auto show = [&p](const std::string& path) { return p.store->show(path); };
  if (!p.recorder || p.tape || !p.recorder->begin(p.version(), show)) return false;
  p.tape = p.recorder;
  p.tape->compare(p.compares);
  p.current->record_on(p.tape);
  return true;
}

void Session::note(std::string_view name, std::span<const std::byte> bytes) {
  if (auto* rehearsal = parts_->worker.rehearsal()) return rehearsal->note(name, digest(bytes));
  if (parts_->tape) parts_->tape->note(name, digest(bytes));
}

void Session::compare_exchanges(bool on) {
  parts_->compares = on;
  if (auto* rehearsal = parts_->worker.rehearsal()) return rehearsal->compare(on);
  if (parts_->tape) parts_->tape->compare(on);
}

Rehearsal* Session::rehearsal() const {
  return parts_->worker.rehearsal();
}

std::string Session::why_too_late() const {
  return cat("rank ", parts_->ended_rank, " has ended its training: rank ", parts_->identity.rank,
             " can exchange nothing with it any more");
}

void Session::reduce(collective::Numbers bucket) {
  Parts& p = *parts_;
  HF_ASSERT(p.group != nullptr);
  std::shared_ptr<collective::Work> sum;
  // In an aborted group a sum can only fail, so the sums thread need not wake up for it.
  if (!p.group->aborted() || !p.queue->is_idle()) {
    sum = p.queue->start([group = p.group.get(), tape = p.tape, bucket] {
      if (!tape) return collective::Verdict{group->all_reduce(bucket), {}};
      collective::RecordedGroup recorded(*group, kWorld, *tape);
      return collective::Verdict{recorded.Group::all_reduce(bucket), {}};
    });
  }
  p.sums.push_back(std::move(sum));
}

Result<Ended> Session::end_step(const arena::StagedStep& step, double loss, std::uint64_t samples) {
  Parts& p = *parts_;
  HF_ASSERT(p.group != nullptr);
  p.step = &step;
  p.loss = loss;
  p.samples = samples;
  const auto result = p.call(trainer::StepEnded{loss});
  p.enter(p.worker.generation());
  p.now(Doing::kBetween);
  p.end_sample(result.what == What::kCommitted || result.what == What::kCommittedByPlan);
  switch (result.what) {
    case What::kCommitted:
      return Ended::kCommitted;
    case What::kCommittedByPlan:
      p.trace_step();
      return Ended::kCommitted;
    case What::kVoid:
      return Ended::kVoid;
    default:
      return p.error_of(result);
  }
}

Outcome Session::barrier() {
  return parts_->exchange([](Group& group) { return group.barrier(); });
}
Outcome Session::broadcast(std::span<std::byte> bytes, Rank root) {
  return parts_->exchange([&](Group& group) { return group.broadcast(bytes, root); });
}
Outcome Session::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  return parts_->exchange([&](Group& group) { return group.all_gather(mine, all); });
}

std::shared_ptr<Group> Session::group() const {
  return parts_->group;
}
const std::shared_ptr<collective::CurrentGeneration>& Session::current() const {
  return parts_->current;
}
const std::shared_ptr<collective::Queue>& Session::queue() const {
  return parts_->queue;
}
const std::shared_ptr<collective::Regions>& Session::regions() const {
  return parts_->regions;
}
void Session::on_abort(std::function<void(Generation)> handler) {
  Parts& p = *parts_;
  p.worker.on_stop(nullptr);  // So that nobody calls the handler while it changes.
  p.on_stop = std::move(handler);
  p.worker.on_stop([&p](Generation g) { return p.stop(g); });
}

Status Session::end() {
  Parts& p = *parts_;
  if (p.due) {
    return Error{Blame::kUser,
                 "this rank ends, and was asked for the version 0 with which all begin"};
  }
  if (std::exchange(p.ended, true)) return {};
  p.now(Doing::kEnded);
  if (p.group) p.idle_group().leave();
  p.worker.trace().event("end", {{"rank", p.identity.rank}, {"version", p.version()}});
  return p.worker.end();
}

}  // namespace holdfast::runtime
