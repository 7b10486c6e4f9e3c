#include "core/agent/placement.h"

#include <algorithm>
#include <utility>

#include "core/agent/process_end.h"

namespace holdfast::agent {

using wire::Reason;

void Placement::start_all() {
  for (auto& place : job_.places) start(place);
}

void Placement::start(Place& place) {
  place.process = job_.new_process();
  place.incarnation = job_.prng.next();
  ++place.attempt;
  Spawn spawn{place.process, place.role,        place.node_id,
              place.attempt, place.incarnation, place.predecessor};
  const auto& own = job_.options.workers;
  spawn.takes_over =
      place.role == Role::kWorker && std::find(own.begin(), own.end(), place.node_id) == own.end();
  spawn.serves = job_.is_servers(place.node_id);
  job_.emit(spawn);
}

// The place has no process now: a spare gets the place, else a new process.
void Placement::give(Place& place) {
  const auto spare = spares_.take_for(place);
  if (!spare) return start(place);
  place.process = spare->process;
  place.incarnation = spare->incarnation;
  ++place.attempt;
  job_.emit(Promote{spare->process, place.node_id, place.attempt, place.predecessor});
  spares_.replace(*spare);
}

void Placement::pause_over(std::uint64_t pause) {
  for (auto& place : job_.places) {
    if (place.pause != pause) continue;
    place.pause = 0;
    give(place);
    reporter_.report();
  }
}

void Placement::died(Place& place, const Died& e) {
  if (place.role == Role::kWorker) rehearsals_.call_off();
  place.previous = std::exchange(place.process, 0);
  place.ending = e.ending;
  place.predecessor = {e.ending, e.error, true};
  place.detected_ns = e.detected_ns;
  place.not_started = 0;
  const bool is_scheduler = place.role == Role::kScheduler;
  if (is_scheduler && ended_well(e.ending) && job_.link != LinkState::kNever) {
    if (job_.state == State::kRunning) job_.enter(State::kDone);
  }
  if (ended_well(e.ending) || job_.state == State::kDone) {
    place.done = true;
    reporter_.report();
    spares_.end_unneeded();
    // The scheduler or the workers have ended. The others end by themselves, unless the workers
    // never reached the scheduler.
    if (is_scheduler || job_.workers_done()) job_.emit(WantGrace{});
    return;
  }
  if (job_.is_ending()) return;
  if (is_told(e)) say_end(place, e);
  const bool repeats = repeats_its_error(place, e);
  if (++place.failures > job_.options.max_restarts) {
    return shutdown_.fail(too_often(place, job_.options), e.process);
  }
  if (repeats) return shutdown_.fail(for_its_error(place, e));
  // A scheduler that fails at once, each time, must not keep a processor busy.
  if (is_scheduler && place.failures > 1) {
    place.pause = job_.pause(place.failures - 2);
  } else {
    give(place);
  }
  reporter_.report();
}

// The lifeline told of the death at once. Now that the memory is freed, the kernel says why.
void Placement::explain(const Died& e) {
  const auto former = std::find_if(job_.places.begin(), job_.places.end(),
                                   [&](const Place& p) { return p.previous == e.process; });
  if (former == job_.places.end() || !is_told(e) || former->ending == e.ending) return;
  former->ending = e.ending;
  say_end(*former, e);
  shutdown_.explain(e.process,
                    e.job_ended ? failed(e, former->node_id) : too_often(*former, job_.options));
  reporter_.report();
  if (repeats_its_error(*former, e)) shutdown_.fail(for_its_error(*former, e));
}

// Requires that the kind of ending is known.
void Placement::say_end(const Place& place, const Died& e) {
  if (job_.is_ending() || ended_well(e.ending)) return;
  job_.emit(Say{how_it_ended(e, place.node_id)});
}

// Whether the same exception has come again at the same step, or certainly would. Then it comes
// from the program or its data, and no further process would fare better.
bool Placement::repeats_its_error(Place& place, const Died& e) {
  if (e.error.empty() || job_.is_ending()) return false;
  const bool repeats = e.is_final || (e.error == place.error && e.version == place.error_version);
  place.error = e.error;
  place.error_version = e.version;
  return repeats;
}

void Placement::not_started(const SpawnFailed& e) {
  Place* place = job_.place_of(e.process);
  if (place != nullptr) {
    place->process = 0;
    // What keeps the first process of a place from starting is taken for permanent; later it may
    // pass.
    if (!job_.is_ending() && place->attempt > 1 && ++place->not_started < kSpawnTries) {
      place->pause = job_.pause(place->not_started - 1);
      return reporter_.report();
    }
  }
  const std::int32_t tries = place != nullptr ? place->not_started : 0;
  shutdown_.fail({127, {.kind = Reason::Kind::kNotStarted, .count = tries, .detail = e.why}, ""});
}

void Placement::receive(const wire::Places& m) {
  Options& options = job_.options;
  if (job_.state != State::kRunning) return;
  const std::set<std::string> granted(m.node_ids.begin(), m.node_ids.end());
  const std::int32_t dropped = drop_others(granted);
  const bool drains = m.drains && !options.drained;
  options.drained = options.drained || m.drains;
  options.takes = options.drained ? 0 : options.takes + dropped;
  if (dropped > 0 || drains) {
    job_.emit(Say{{.kind = m.drains ? Reason::Kind::kDrained : Reason::Kind::kGivenAway,
                   .count = dropped,
                   .total = job_.worker_places()}});
  }
  if (dropped > 0) spares_.wait_for_places(dropped);
  const bool takes = take_lacking(granted);
  if (dropped > 0 || drains) spares_.end_unneeded();
  if (dropped > 0 || drains || takes) reporter_.report();
}

// Ends the processes of places that another host has now. Returns the number of these places.
std::int32_t Placement::drop_others(const std::set<std::string>& granted) {
  return static_cast<std::int32_t>(std::erase_if(job_.places, [&](const Place& place) {
    if (place.role != Role::kWorker || granted.contains(place.node_id)) return false;
    rehearsals_.call_off();
    if (place.process != 0) job_.kill(place.process);
    return true;
  }));
}

bool Placement::take_lacking(std::set<std::string> granted) {
  for (const auto& place : job_.places) granted.erase(place.node_id);
  if (!granted.empty()) rehearsals_.call_off();
  for (const auto& node_id : granted) {
    job_.places.push_back({.node_id = node_id});
    job_.options.takes -= job_.options.takes > 0 ? 1 : 0;
    give(job_.places.back());
  }
  return !granted.empty();
}

}  // namespace holdfast::agent
