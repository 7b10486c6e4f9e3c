#include "core/member/machine.h"

#include "base/text.h"

namespace holdfast::member {

void Machine::send(wire::Message message) {
  // What is said while there is no connection is lost: after Register the scheduler asks again.
  if (connected_) actions_.push_back(Send{std::move(message)});
}

void Machine::on(const Connected&) {
  connected_ = true;
  self_.generation = std::max(stopped_for_, running_);
  send(self_);
}

void Machine::on(const wire::Accepted& m) {
  placed_ = true;
  actions_.push_back(Place{m.rank, m.world_size, m.run_id});
  if (!failure_.empty()) send(wire::Failed{failure_});
  if (phase_ == Phase::kEnded) send(wire::Finished{running_, ended_at_});
}

void Machine::on(const wire::Waiting& m) {
  if (!placed_) {
    actions_.push_back(Say{m.reason});
    return;
  }
  // Its place was given away while it was silent. The successor needs the arena: make room.
  give_up(false, cat("this process was silent for longer than its lease and has been replaced: ",
                     m.reason));
}

void Machine::on(const wire::Stop& m) {
  if (m.generation < stopped_for_ || m.generation <= running_) return;  // Of an older life.
  stopped_for_ = m.generation;
  if (phase_ == Phase::kTraining) actions_.push_back(Abort{running_});
  if (phase_ == Phase::kParked) report();
}

void Machine::on(const Parked& e) {
  phase_ = Phase::kParked;
  holding_ = e.holding;
  if (stopped_for_ > running_) report();
}

void Machine::report() {
  send(wire::Report{stopped_for_, holding_.version, holding_.staged});
}

void Machine::on(const wire::Repair& m) {
  if (m.generation != stopped_for_ || phase_ != Phase::kParked) return;
  if (m.generation <= running_) return;
  if (repaired_for_ == m.generation) {  // The answer was lost with the connection.
    send(wire::Repaired{m.generation});
    return;
  }
  phase_ = Phase::kMending;
  mending_for_ = m.generation;
  actions_.push_back(Mend{m});
}

void Machine::on(const RepairDone& e) {
  phase_ = Phase::kParked;
  holding_ = e.holding;
  repaired_for_ = mending_for_;
  if (mending_for_ == stopped_for_) {
    send(wire::Repaired{repaired_for_});
  } else {
    report();
  }
}

void Machine::on(const wire::Resume& m) {
  if (phase_ != Phase::kParked || m.generation != stopped_for_ || m.generation <= running_) return;
  if (m.version != holding_.version) {
    // It must never train from another version than the others: better no job than wrong bits.
    on(TrainingFailed{cat("this rank holds version ", holding_.version,
                          " but was told to go on from ", m.version,
                          "; this is an error in Holdfast")});
    return;
  }
  running_ = m.generation;
  phase_ = Phase::kTraining;
  actions_.push_back(Go{m.generation, m.version, m.ended});
}

void Machine::on(const Committed& e) {
  send(wire::Progress{running_, e.version, e.loss});
}

void Machine::on(const TrainingEnded& e) {
  phase_ = Phase::kEnded;
  ended_at_ = e.version;
  send(wire::Finished{running_, ended_at_});
}

void Machine::on(const TrainingFailed& e) {
  failure_ = e.reason;
  send(wire::Failed{failure_});
}

void Machine::on(const wire::Farewell&) {
  if (phase_ == Phase::kEnded) actions_.push_back(Released{});
}

void Machine::give_up(bool success, std::string reason) {
  if (std::exchange(over_, true)) return;
  actions_.push_back(Abort{std::max(stopped_for_, running_)});
  actions_.push_back(GiveUp{success, std::move(reason)});
}

}  // namespace holdfast::member
