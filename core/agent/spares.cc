#include "core/agent/spares.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace holdfast::agent {

using wire::Reason;

namespace {

constexpr Generation kForNoStep = std::numeric_limits<Generation>::max();

}  // namespace

void Spares::start_first() {
  if (job_.options.bound_spares) {
    for (const auto& node_id : job_.options.workers) {
      if (!job_.is_servers(node_id)) add(node_id);
    }
  } else {
    for (std::int32_t i = 0; i < job_.options.spares; ++i) add("");
  }
}

void Spares::wait_for_places(std::int32_t places) {
  job_.options.spare_host = true;
  if (!job_.waits_for_places() || job_.options.bound_spares) return;
  while (static_cast<std::int32_t>(spares_.size()) < places) add("");
}

void Spares::add(const std::string& node_id) {
  const Spare spare{job_.new_process(), job_.prng.next(), node_id};
  spares_.push_back(spare);
  job_.is_rest_told = false;
  Spawn spawn{spare.process, Role::kSpare, node_id, 0, spare.incarnation};
  spawn.prepares = job_.waits_for_places();
  job_.emit(spawn);
}

// Whether a worker still trains that a spare could replace. `spare_of`: the only place that the
// spare may take; empty: any.
bool Spares::is_needed(const std::string& spare_of) const {
  if (job_.waits_for_places()) return job_.state == State::kRunning;
  return std::any_of(job_.places.begin(), job_.places.end(), [&](const Place& p) {
    return p.role == Role::kWorker && !job_.is_servers(p.node_id) && !p.done &&
           (spare_of.empty() || spare_of == p.node_id);
  });
}

std::optional<Spare> Spares::take_for(const Place& place) {
  // A server needs nothing of the program, so a new one is there as soon as a spare would be.
  if (place.role == Role::kScheduler || job_.is_servers(place.node_id)) return std::nullopt;
  const auto may_take = [&](const Spare& s) {
    return s.node_id.empty() || s.node_id == place.node_id;
  };
  auto found = std::find_if(spares_.begin(), spares_.end(),
                            [&](const Spare& s) { return s.is_ready && may_take(s); });
  if (found == spares_.end()) found = std::find_if(spares_.begin(), spares_.end(), may_take);
  if (found == spares_.end()) return std::nullopt;
  Spare spare = std::move(*found);
  spares_.erase(found);
  return spare;
}

void Spares::replace(const Spare& promoted) {
  owed_.push_back({job_.pause(kSparePatience), generation_, promoted.node_id});
}

void Spares::start_owed(const std::function<bool(const Owed&)>& due) {
  std::vector<std::string> start;
  std::erase_if(owed_, [&](const Owed& owed) {
    if (!due(owed)) return false;
    start.push_back(owed.node_id);
    return true;
  });
  if (job_.state != State::kRunning) return;
  for (const auto& node_id : start) {
    if (is_needed(node_id)) add(node_id);
  }
}

void Spares::end_unneeded() {
  for (const auto& spare : spares_) {
    if (!is_needed(spare.node_id)) job_.kill(spare.process);
  }
}

void Spares::ready(Process process) {
  for (auto& spare : spares_) {
    if (spare.process != process || spare.is_ready) continue;
    spare.is_ready = true;
    job_.is_rest_told = false;
  }
}

void Spares::died(const Died& e) {
  const auto spare = find(e.process);
  const std::string node_id = spare->node_id;
  spares_.erase(spare);
  job_.is_rest_told = false;
  if (job_.state != State::kRunning || !is_needed(node_id)) return;
  if (++failures_ > job_.options.max_restarts) {
    job_.emit(Say{{.kind = Reason::Kind::kSparesGivenUp, .ending = e.ending, .count = failures_}});
    return;
  }
  add(node_id);
}

void Spares::not_started(const SpawnFailed& e) {
  const auto spare = find(e.process);
  job_.emit(Say{{.kind = Reason::Kind::kSpareNotStarted, .detail = e.why}});
  if (++failures_ <= job_.options.max_restarts) {
    owed_.push_back({job_.pause(failures_ - 1), kForNoStep, spare->node_id});
  }
  spares_.erase(spare);
  job_.is_rest_told = false;
}

void Spares::pause_over(std::uint64_t pause) {
  start_owed([&](const Owed& owed) { return owed.pause == pause; });
}

void Spares::hear_of_step(Generation generation) {
  generation_ = generation;
  failures_ = 0;
  // Progress of an older generation may come late. It starts no spare.
  start_owed([&](const Owed& owed) { return owed.after < generation; });
}

std::deque<Spare>::iterator Spares::find(Process process) {
  return std::find_if(spares_.begin(), spares_.end(),
                      [&](const Spare& s) { return s.process == process; });
}

bool Spares::has(Process process) const {
  return std::any_of(spares_.begin(), spares_.end(),
                     [&](const Spare& s) { return s.process == process; });
}

bool Spares::are_all_ready() const {
  return !spares_.empty() && owed_.empty() &&
         std::all_of(spares_.begin(), spares_.end(), [](const Spare& s) { return s.is_ready; });
}

std::vector<wire::SpareState> Spares::states() const {
  std::vector<wire::SpareState> all;
  for (const auto& spare : spares_) all.push_back({spare.node_id, spare.is_ready});
  return all;
}

}  // namespace holdfast::agent
