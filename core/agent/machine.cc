#include "core/agent/machine.h"

#include <algorithm>

#include "core/agent/process_end.h"

namespace holdfast::agent {

using wire::Reason;

Actions Machine::step(const Event& event) {
  job_.event = event.index();
  if (job_.state != State::kExited) {
    std::visit([&](const auto& e) { on(e); }, event);
    rehearsals_.maybe_begin();
    reporter_.report_changes();
    shutdown_.maybe_exit(rehearsals_.under_way());
  }
  // Messages go first: starting a process takes milliseconds, while other ranks wait for the
  // messages.
  std::stable_partition(job_.actions.begin(), job_.actions.end(),
                        [](const Action& action) { return std::holds_alternative<Send>(action); });
  return std::exchange(job_.actions, {});
}

void Machine::on(const Started&) {
  placement_.start_all();
  spares_.start_first();
}

void Machine::on(const PauseOver& e) {
  shutdown_.pause_over(e.pause);
  if (job_.state != State::kRunning) return;
  spares_.pause_over(e.pause);
  rehearsals_.pause_over(e.pause);
  placement_.pause_over(e.pause);
}

void Machine::on(const Died& died) {
  if (died.process == rehearsals_.under_way()) return rehearsals_.died(died);
  Died e = died;
  e.ending = hangs_.ending_of(died);
  if (is_told(died)) job_.running.erase(e.process);
  Place* place = job_.place_of(e.process);
  shutdown_.hear_of_end(e, place != nullptr ? place->node_id : "");
  if (place != nullptr) {
    placement_.died(*place, e);
  } else if (spares_.has(e.process)) {
    spares_.died(e);
  } else {
    placement_.explain(e);
  }
}

void Machine::on(const Looked& e) {
  hangs_.on(e);
  stalls_.on(e);
}

void Machine::on(const SpawnFailed& e) {
  job_.running.erase(e.process);
  if (e.process == rehearsals_.under_way()) {
    rehearsals_.not_started(e);
  } else if (spares_.has(e.process)) {
    spares_.not_started(e);
  } else {
    placement_.not_started(e);
  }
}

void Machine::on(const LinkUp& e) {
  job_.link = LinkState::kUp;
  job_.is_paused = false;  // Else the scheduler says so.
  is_far_ = e.is_far;
  reporter_.report();
  shutdown_.repeat_failure();
  if (is_far_) job_.send(wire::Heartbeat{});  // The link may be lost before the next beat.
}

void Machine::on(const Received& e) {
  std::visit([&](const auto& message) { receive(message); }, e.message);
}

void Machine::receive(const wire::JobProgress& m) {
  rehearsals_.hear_of_step(m.generation);
  if (m.version <= version_) return;
  version_ = m.version;
  for (auto& place : job_.places) place.failures = 0;
  spares_.hear_of_step(m.generation);
}

// If the message changes a book that this agent does not have, something between was lost: ask for
// the whole book.
void Machine::receive(const wire::Addresses& m) {
  if (m.base != 0) rehearsals_.call_off();  // A change, not a first book: a rank was replaced.
  auto book = book_.after(m);
  if (!book) {
    if (m.base != 0) job_.send(wire::AskAddresses{});
    return;
  }
  book_ = *std::move(book);
  job_.emit(LeaveAddresses{book_.whole()});
}

// The order to end a rank that hangs may come late, when the rank has gone on.
void Machine::receive(const wire::Evict& m) {
  if (!m.is_hung || stalls_.stands(m.node_id)) hangs_.receive(m);
}

void Machine::receive(const wire::Snapshot& m) {
  using Word = wire::SnapshotWord;
  if (m.word == Word::kWrite || m.word == Word::kName) return job_.emit(DoSnapshot{m});
  shutdown_.receive(m);
}

void Machine::receive(const wire::Pause& m) {
  job_.is_paused = m.on;
  stalls_.begin_anew();
}

void Machine::receive(const wire::Drill& m) {
  if (!job_.options.takes_drills) return job_.emit(Say{{.kind = Reason::Kind::kNoDrills}});
  job_.emit(EndHost{.stops = m.kind == wire::DrillKind::kStop});
}

void Machine::receive(const wire::Waiting& m) {
  if (m.reason.kind == Reason::Kind::kHostLost) rehearsals_.call_off();
  if (m.remark != 0) {
    if (m.remark <= job_.remarks) return;  // By a former scheduler of the job.
    job_.remarks = m.remark;
  }
  job_.emit(Say{m.reason});
}

}  // namespace holdfast::agent
