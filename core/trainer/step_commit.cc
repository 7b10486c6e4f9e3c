#include "core/trainer/step_commit.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace holdfast::trainer {

using wire::Reason;

void StepCommit::on(const StepEnded& e) {
  if (!call_.begin(ProgramCall::Kind::kEndStep)) return;
  HF_ASSERT(training_.state == State::kStepping);
  target_ = training_.holding.version + 1;
  loss_ = e.loss;
  training_.enter(State::kSumming);
  training_.work(AwaitSums{});
}

void StepCommit::on(const SumsDone& e) {
  if (training_.state == State::kSpokenFor) return group_.leave(true);
  HF_ASSERT(training_.state == State::kSumming);
  if (e.outcome != Outcome::kDone) return met(e.outcome, e.why);
  training_.enter(State::kStaging);
  training_.work(Stage{target_});
}

void StepCommit::on(const Staged&) {
  HF_ASSERT(training_.state == State::kStaging);
  training_.holding.staged = target_;
  if (!group_.exchanges()) return arrive();
  training_.enter(State::kExchanging);
  training_.work(ExchangeCopies{target_});
}

// A holder has the step of its wards before it arrives at the barrier. So once the barrier is
// complete anywhere, the step is on two hosts.
void StepCommit::on(const CopiesExchanged& e) {
  training_.holding.held = e.held;
  if (training_.state == State::kSpokenFor) return group_.leave(true);
  HF_ASSERT(training_.state == State::kExchanging);
  if (e.outcome != Outcome::kDone) return met(e.outcome, "");
  arrive();
}

// Whoever has lost pages does not arrive, so nobody commits the step. Nor does anybody, once one
// rank stands still. A generation that was stopped already would not stop it again.
void StepCommit::arrive() {
  const bool is_short = training_.pages_lost > 0 && training_.options.protect;
  if (is_short) return group_.lose(training_.options.replacement_timeout);
  if (!is_paused() || training_.stopped()) return pass();
  training_.enter(State::kHeld);
  training_.work(Hold{});
  training_.say(wire::Pause{true, pauses_, training_.holding.version});
}

void StepCommit::hear(std::uint64_t pauses, bool anew) {
  const bool is_news = std::exchange(pauses_, pauses) != pauses;
  // It may be the last one for long.
  if (is_paused() && untold_) training_.say(*std::exchange(untold_, std::nullopt));
  if (training_.state != State::kHeld || training_.stopped()) return;
  if (!is_paused()) return pass();
  if (is_news || anew) training_.say(wire::Pause{true, pauses_, training_.holding.version});
}

void StepCommit::pass() {
  if (!training_.options.protect) return update();
  training_.enter(State::kArriving);
  training_.work(Arrive{});
}

// If the barrier is complete, every rank has staged the step: any arena can finish it.
void StepCommit::on(const Arrived& e) {
  // The plan decides on the step, even if the barrier was complete.
  if (training_.state == State::kSpokenFor) return group_.leave(true);
  HF_ASSERT(training_.state == State::kArriving);
  if (e.outcome != Outcome::kDone) return met(e.outcome, e.why);
  update();
}

void StepCommit::update() {
  training_.enter(State::kUpdating);
  if (asked_ && asked_->generation != training_.generation) asked_.reset();
  const bool keeps = asked_ && asked_->version == target_;
  if (keeps) keeps_ = std::exchange(asked_, std::nullopt);
  training_.work(Update{.keeps = keeps});
}

// The part may be of a step that was made before a fault. The scheduler has dropped it then.
void StepCommit::on(const PartKept& e) {
  if (!keeps_ || keeps_->version != e.version) return;
  using Word = wire::SnapshotWord;
  say(e.error.empty() ? Word::kTaken : Word::kFailed, *std::exchange(keeps_, std::nullopt),
      e.error);
}

void StepCommit::on(const Updated&) {
  HF_ASSERT(training_.state == State::kUpdating);
  Holding& holding = training_.holding;
  holding.version = holding.staged = target_;
  // Copies that are held for others and lack this step are of no use any more.
  std::erase_if(holding.held, [&](const auto& copy) { return copy.staged != target_; });
  for (auto& copy : holding.held) copy.version = target_;
  // The step stands; what was lost of it is fetched before the program goes on.
  if (training_.pages_lost > 0) return group_.lose(training_.options.replacement_timeout);
  holding.has_lost_shared = holding.has_lost_private = false;  // Of the version before.
  training_.enter(State::kStepping);
  const Generation generation = training_.generation;
  const Duration since_told = training_.now - told_at_;
  untold_ = wire::Progress{generation, target_, loss_};
  const bool is_due = since_told >= training_.options.progress_interval;
  if (told_generation_ != generation || is_due || is_paused()) {
    told_generation_ = generation;
    told_at_ = training_.now;
    training_.say(*std::exchange(untold_, std::nullopt));
  }
  call_.answer(Return::What::kCommitted);
}

// The scheduler asks before it knows of the newest step. So it may come too late, and asks again.
void StepCommit::on(const SnapshotAsked& e) {
  const bool is_made = e.version <= training_.holding.version ||
                       (training_.state == State::kUpdating && e.version <= target_);
  if (is_made || e.generation != training_.generation) return say(wire::SnapshotWord::kMissed, e);
  asked_ = e;
}

void StepCommit::say(wire::SnapshotWord word, const SnapshotAsked& asked, std::string why) {
  training_.say(wire::Snapshot{.word = word,
                               .generation = asked.generation,
                               .version = asked.version,
                               .why = wire::sentence(std::move(why))});
}

void StepCommit::met(Outcome outcome, const std::string& why) {
  if (outcome == Outcome::kRefused) {
    return call_.fail({.kind = Reason::Kind::kNotTheSame, .detail = why});
  }
  group_.lose(training_.options.replacement_timeout);
}

}  // namespace holdfast::trainer
