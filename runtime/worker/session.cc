#include "runtime/worker/session.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "os/lost_pages.h"
#include "runtime/worker/session_parts.h"

namespace holdfast::runtime {
namespace {

using collective::Group;
using collective::Outcome;
using What = trainer::Return::What;

}  // namespace

// ---- Steps that are rehearsed -------------------------------------------------------------------

// Without a recorder the rank trains as well, so a failure is ignored.
void Session::Parts::open_recorder() {
  const config::Settings& settings = worker.settings();
  if (worker.solo() || worker.rehearsal() != nullptr || !settings.rehearsals) return;
  // Without a lifeline there is no agent to start a rehearsal. Without `protect` no version holds
  // all that a rehearsal needs.
  if (settings.lifeline.empty() || !settings.protect || identity.servers > 0) return;
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
  if (p.tables) {
    if (const Status told = p.tables->publish(); !told) return p.worker.fail(told.error().what);
  }
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
  if (result->what == What::kEnded) return Met::kJoined;  // begin_step() tells.
  if (result->what != What::kJoined) return p.error_of(*result);
  p.now(Doing::kBetween);
  p.enter(p.worker.generation());
  p.was_used = true;  // To restore the program.
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
  p.table_why.clear();
  os::keep_handler();
  (void)p.has_lost_pages();
  if (p.tables) p.tables->give_up();
  const auto result = p.call(trainer::StepBegun{p.group && p.is_aborted()});
  p.enter(p.worker.generation());
  p.now(Doing::kComputing);
  switch (result.what) {
    case What::kBegun:
      return Began::kAtOnce;
    case What::kBegunAnew:
      p.was_used = true;
      return Began::kReformed;
    case What::kTooLate:
    case What::kEnded:
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
      collective::RecordedGroup recorded(*group, kWholeWorld, *tape);
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
  (void)p.has_lost_pages();
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
    case What::kEnded:  // begin_step() tells.
      p.was_used = true;
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
TableClient* Session::tables() const {
  return parts_->tables.get();
}
std::shared_ptr<Group> Session::everyone() const {
  return parts_->everyone;
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

void Session::staging() {
  parts_->now(Doing::kStaging);
}
void Session::uses_committed() {
  parts_->was_used = true;
}
void Session::spoil_part() {
  parts_->end_keeping("its memory had changed, as the comparison with the other ranks has shown");
}

bool Session::has_lost_pages() {
  return parts_->has_lost_pages();
}

Status Session::end() {
  Parts& p = *parts_;
  if (p.due) {
    return Error{Blame::kUser,
                 "this rank ends, and was asked for the version 0 with which all begin"};
  }
  if (std::exchange(p.ended, true)) return {};
  const bool has_just_lost = p.store->look_for_losses(true).pages > 0;
  const Holding held = p.store->holding();
  if (has_just_lost || held.has_lost_shared || held.has_lost_private) {
    return p.worker.fail(
        "memory errors have taken pages of the state since the last step: what "
        "was saved or evaluated since may be wrong. Start the job again");
  }
  p.now(Doing::kEnded);
  if (p.group) p.idle_group().leave();
  if (p.everyone) p.everyone->leave();
  p.worker.trace().event("end", {{"rank", p.identity.rank}, {"version", p.version()}});
  return p.worker.end();
}

}  // namespace holdfast::runtime
