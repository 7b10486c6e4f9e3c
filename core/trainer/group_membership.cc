#include "core/trainer/group_membership.h"

#include <algorithm>

#include "base/assert.h"

namespace holdfast::trainer {

using wire::Reason;

void GroupMembership::on(const StepBegun& e) {
  if (!call_.begin(ProgramCall::Kind::kBeginStep)) return;
  const bool steps = training_.state == State::kStepping;
  HF_ASSERT(training_.state == State::kGoing || steps);
  reformed_ = false;
  if (steps && !e.group_ended && training_.pages_lost == 0)
    return call_.answer(Return::What::kBegun);
  if (!steps && !training_.stopped()) return form();
  lose(training_.options.replacement_timeout);
}

void GroupMembership::form() {
  if (ended_ != kNoRank) {
    training_.enter(State::kGoing);
    return call_.answer(Return{.what = Return::What::kTooLate, .ended = ended_});
  }
  training_.enter(State::kForming);
  training_.work(JoinGroup{training_.generation});
}

void GroupMembership::on(const Formed& e) {
  linked_ = e.linked;
  exchanges_ = e.exchanges;
  training_.holding.held = e.held;
  if (e.ended || training_.stopped()) return lose(training_.options.replacement_timeout);
  training_.enter(State::kStepping);
  call_.answer(reformed_ ? Return::What::kBegunAnew : Return::What::kBegun);
}

// If a fault is the cause, the scheduler says so soon.
void GroupMembership::on(const NotFormed& e) {
  if (training_.options.solo || e.mistaken) {
    return call_.fail({.kind = Reason::Kind::kNotFormed, .detail = e.why});
  }
  linked_ = e.linked;
  training_.holding.held = e.held;
  not_formed_ = e.why;
  lose(training_.options.forming_patience);
}

// Until the scheduler has stopped this generation, the cause is unknown.
void GroupMembership::lose(Duration patience) {
  const Options& options = training_.options;
  reformed_ = true;
  // There is no step to go back to. This is said now, because a plan would give another reason.
  if (!options.protect && !options.solo) {
    return call_.fail({.kind = Reason::Kind::kUnprotected, .version = training_.holding.version});
  }
  if (options.solo) {
    return call_.fail({.kind = Reason::Kind::kPagesLost, .count = training_.pages_lost});
  }
  if (training_.stopped()) return leave(false);
  training_.enter(State::kUncertain);
  if (training_.pages_lost > 0) say_lost();
  training_.deadline = training_.now + patience;
  gives_up_at_.reset();
  if (linked_ || training_.pages_lost > 0) {
    gives_up_at_ = training_.deadline;
    training_.deadline = std::min(*gives_up_at_, training_.now + options.link_patience);
  }
  end_.cuts_wait_short();
}

void GroupMembership::leave(bool reported) {
  reported_ = reported;
  training_.deadline.reset();
  gives_up_at_.reset();
  not_formed_.clear();
  training_.enter(State::kLeaving);
  training_.work(LeaveGroup{});
}

void GroupMembership::deadline_passed() {
  if (gives_up_at_ && training_.now < *gives_up_at_) {  // Repeated, since it may get lost.
    training_.deadline = std::min(*gives_up_at_, training_.now + training_.options.link_patience);
    return say_lost();
  }
  if (!not_formed_.empty()) {
    return call_.fail({.kind = Reason::Kind::kNotFormed, .detail = not_formed_});
  }
  call_.end_over({.kind = Reason::Kind::kNoCause});
}

}  // namespace holdfast::trainer
