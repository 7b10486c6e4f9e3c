#include "sim/scheduler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/prng.h"
#include "base/text.h"
#include "sim/exchange_keys.h"
#include "sim/words.h"

namespace holdfast::sim {
namespace {

constexpr Duration kAgentPatience = std::chrono::seconds(10);
constexpr Duration kHostSilence = std::chrono::milliseconds(500);
constexpr Duration kHangTimeout = std::chrono::seconds(12);
constexpr Duration kLinger = std::chrono::seconds(2);  // For processes that come after the end.

// Whether the member counts as dead because it was silent, whether its training has ended or not.
bool is_lost(const controller::Member& member) {
  return member.ending.kind == wire::Ending::Kind::kNotHeard &&
         (member.state == controller::SeatState::kSilent ||
          member.state == controller::SeatState::kLeft);
}

}  // namespace

Index SchedulerShell::connect(Index worker, Index agent) {
  const Index link = connections_.add(worker, agent);
  if (job_.scheduler_runs()) accept(link);
  return link;
}

// Tells the controller of a new connection. A scheduler that stands still is told later, before the
// connection's first message.
void SchedulerShell::accept(Index link) {
  if (std::exchange(job_.links[link].accepted, true)) return;
  const bool agent = job_.links[link].worker == kNone;
  tell(controller::Connected{link + 1, agent ? wire::PeerKind::kAgent : wire::PeerKind::kWorker});
}

void SchedulerShell::deliver_up(Index link) {
  auto message = connections_.take_up(link);
  if (message) hear(link, *std::move(message));
}

void SchedulerShell::hear_end(Index link) {
  auto& from = job_.links[link];
  from.scheduler_open = false;
  from.up.clear();
  accept(link);
  tell(controller::Closed{link + 1});
  if (from.worker == kNone || !job_.setup.proof) return;
  const Worker& worker = job_.workers[from.worker];
  if (!worker.alive) proofs_.push_back({worker.node_id, worker.incarnation});
}

void SchedulerShell::order(wire::Message order) {
  job_.links.emplace_back();
  job_.links.back().client_open = false;
  job_.links.back().client_gone = job_.links.back().accepted = true;
  const Index link = job_.links.size() - 1;
  tell(controller::Connected{link + 1, wire::PeerKind::kObserver});
  hear(link, std::move(order));
}

Rank SchedulerShell::rank_in_roster(const std::string& node_id) const {
  const auto& members = job_.scheduler.machine->members();
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].seat.node_id == node_id) return static_cast<Rank>(i);
  }
  return kNoRank;
}

void SchedulerShell::start() {
  job_.scheduler.starting = false;
  job_.scheduler.stores.clear();
  job_.scheduler.exits_at.reset();
  job_.scheduler.since = job_.now;
  job_.scheduler.paused_until = {};
  job_.scheduler.stopped.reset();
  job_.scheduler.machine.emplace(
      controller::Options{.job = "job",
                          .run_id = job_.run_id,
                          .world_size = job_.setup.ranks,
                          .servers = job_.setup.servers,
                          .topology_timeout = kTopologyTimeout,
                          .lease = kLease,
                          .replacement_timeout = kReplacementTimeout,
                          .host_silence = job_.setup.hosts ? kHostSilence : Duration{},
                          .hang_timeout = kHangTimeout,
                          .by_agent = job_.setup.agent,
                          .own_host = job_.setup.hosts ? "host-0" : "",
                          .own_agent = job_.setup.hosts ? "agent-0" : "",
                          .snapshots = {.wanted = job_.setup.snapshots,
                                        .every = job_.setup.snapshot_every,
                                        .steps = job_.setup.snapshot_steps,
                                        .keep = job_.setup.snapshots_kept},
                          .agent_patience = kAgentPatience},
      journal_.formation());
  for (auto& agent : job_.agents) agent.disturbed = std::max(agent.disturbed, job_.now);
  for (auto& worker : job_.workers) worker.disturbed = std::max(worker.disturbed, job_.now);
  std::vector<wire::KeyValue> kept;
  for (const auto& [key, pair] : journal_.values()) kept.push_back(pair);
  std::vector<wire::Writer> writers;
  for (const auto& [writer, last] : journal_.writers()) writers.push_back(last);
  tell(controller::Started{std::move(kept), std::move(writers), journal_.remarks()});
}

void SchedulerShell::kill(std::int32_t code, bool store_survives) {
  const bool by_itself = job_.scheduler.exits_at && *job_.scheduler.exits_at <= job_.now;
  // The queued stores may be one transaction or several: any number of the oldest may be durable.
  const auto queued = static_cast<std::uint32_t>(job_.scheduler.stores.size());
  const std::uint32_t survive = !store_survives || queued == 0 ? 0
                                : queued == 1                  ? 1
                                                               : 1 + job_.choices.pick(queued);
  for (std::uint32_t i = 0; i < survive; ++i) journal_.make_durable(job_.scheduler.stores[i]);
  job_.checkers.forgot(journal_.formation() ? journal_.formation()->reached : 0);
  job_.scheduler.machine.reset();
  job_.scheduler.stores.clear();
  job_.scheduler.deadline.reset();
  job_.scheduler.exits_at.reset();
  job_.scheduler.signal = 0;
  proofs_.clear();
  not_there_.clear();
  bool speaks = false;
  for (Index i = connections_.first_open(); i < job_.links.size(); ++i) {
    speaks = speaks || !job_.links[i].down.empty();
  }
  const bool loses = code != 0 && !by_itself && speaks && job_.choices.pick(2) == 0;
  for (Index i = connections_.first_open(); i < job_.links.size(); ++i) {
    auto& link = job_.links[i];
    link.scheduler_open = false;
    link.scheduler_gone = true;
    link.up.clear();
    if (loses) link.down.clear();
  }
  if (job_.setup.agent) {
    job_.agents[0].hear_of_death(job_.scheduler.process, code, false);
  } else {
    job_.person.scheduler = !by_itself && job_.setup.replaced;
    job_.scheduler.lost = !by_itself && !job_.setup.replaced;
  }
}

void SchedulerShell::tell(const controller::Event& event) {
  for (const auto& action : job_.scheduler.machine->step(job_.now, event)) carry_out(action);
  check_agent_hears_first();
  const controller::Machine& machine = *job_.scheduler.machine;
  if (machine.stands_still()) job_.checkers.stands_still(machine.head().pauses);
  job_.scheduler.deadline = job_.scheduler.machine->deadline();
}

// Checks that an agent which connects in time hears of the job's end before the workers do. Else it
// would take their exits for deaths.
void SchedulerShell::check_agent_hears_first() {
  const bool worker_told = std::exchange(worker_told_end_, false);
  if (!job_.setup.agent || agent_told_end_ || !worker_told) return;
  if (job_.now < job_.scheduler.ended_at + kAgentPatience / 2) {
    job_.checkers.violate("P32: a worker hears of the end before the agent does");
  }
}

void SchedulerShell::store_done() {
  journal_.make_durable(job_.scheduler.stores.front());
  job_.scheduler.stores.pop_front();
  tell(controller::Stored{});
}

// A digest of what a message may change in the formation and its stage.
std::uint64_t SchedulerShell::record_print() const {
  const wire::Formation formation = job_.scheduler.machine->formation();
  std::uint64_t print = derive(formation.generation, formation.version,
                               static_cast<std::uint64_t>(formation.stage), formation.recoveries);
  for (const auto& seat : formation.roster) {
    print = derive(print, seat.incarnation, seat.finished, seat.version);
  }
  return derive(print, formation.reached);
}

// Tells the checkers that the scheduler knows of a committed step, if the report is not too late.
void SchedulerShell::hear_of_step(const wire::Message& message) {
  const auto* progress = std::get_if<wire::Progress>(&message);
  const bool counts = progress != nullptr &&
                      job_.scheduler.machine->stage() == wire::Stage::kRunning &&
                      job_.scheduler.machine->generation() == progress->generation;
  if (counts) job_.checkers.told(progress->version);
}

void SchedulerShell::hear(Index link, wire::Message message) {
  accept(link);
  bool fenced = false;
  if (job_.links[link].worker != kNone && !std::holds_alternative<wire::Register>(message)) {
    const Worker& worker = job_.workers[job_.links[link].worker];
    const auto* member = job_.scheduler.machine->find(worker.node_id);
    fenced = job_.scheduler.machine->assembled() && member != nullptr &&
             member->seat.incarnation != worker.incarnation;
  }
  const std::uint64_t before = fenced ? record_print() : 0;
  if (!fenced) hear_of_step(message);
  tell(controller::Received{link + 1, std::move(message)});
  check_round();
  if (fenced && record_print() != before) {
    job_.checkers.violate("S6: the word of a fenced process changed the record");
  }
}

void SchedulerShell::carry_out(const controller::Action& action) {
  if (job_.log.is_wanted()) job_.log.tell(cat("    scheduler: ", to_words(action)));
  job_.log.fold(action.index());
  if (const auto* store = std::get_if<controller::Store>(&action)) {
    job_.scheduler.stores.push_back(*store);
  } else if (const auto* send = std::get_if<controller::Send>(&action)) {
    const Index link = static_cast<Index>(send->link) - 1;
    Rank rank = kNoRank;
    Incarnation incarnation = 0;
    if (job_.links[link].worker != kNone) {
      const Worker& worker = job_.workers[job_.links[link].worker];
      incarnation = worker.incarnation;
      rank = rank_in_roster(worker.node_id);
    }
    job_.log.fold(print_of(send->message) ^ send->link);
    job_.checkers.said(send->message, rank, incarnation, journal_.formation());
    check_told(link, send->message);
    check_blamed(send->message);
    if (const auto* word = std::get_if<wire::Snapshot>(&send->message)) asked_[link] = *word;
    if (std::holds_alternative<wire::JobEnded>(send->message)) {
      (job_.links[link].worker == kNone ? agent_told_end_ : worker_told_end_) = true;
    }
    connections_.send_down(link, send->message);
  } else if (const auto* answer = std::get_if<controller::Answer>(&action)) {
    const auto& [key, value, version] = *answer->found;
    carry_out(controller::Send{answer->link, wire::Got{answer->id, true, key, value, version}});
  } else if (const auto* close = std::get_if<controller::Close>(&action)) {
    auto& link = job_.links[static_cast<Index>(close->link) - 1];
    link.closed_by_scheduler = link.scheduler_gone = true;
  } else if (const auto* question = std::get_if<controller::Probe>(&action)) {
    probe(*question);
  } else if (const auto* note = std::get_if<controller::Note>(&action)) {
    if (note->kind == controller::Note::Kind::kStop) job_.checkers.began(note->generation);
    const bool refused = note->kind == controller::Note::Kind::kRefused;
    if (refused || note->reason.kind == wire::Reason::Kind::kImpossible) {
      job_.checkers.violate("P43: what a sound process says is taken for what can not be");
    }
  } else if (const auto* end = std::get_if<controller::End>(&action)) {
    job_.scheduler.success = end->success;
    job_.scheduler.ended_at = job_.now;
  } else if (std::holds_alternative<controller::Leave>(action)) {
    job_.scheduler.exits_at = job_.now + kLinger;
  }
}

// Checks that no round of a snapshot waits for somebody who will say nothing any more: then no
// snapshot would ever be made again.
void SchedulerShell::check_round() {
  const controller::Machine& machine = *job_.scheduler.machine;
  if (machine.stage() != wire::Stage::kRunning) return;
  for (const auto number : machine.snapshot_waits_for()) {
    const Index i = static_cast<Index>(number) - 1;
    const Connection& link = job_.links[i];
    if (link.worker == kNone) {
      // It was lost without a word, and others have its places.
      const auto& members = machine.members();
      const bool is_known = !job_.had(Fault::kMove) &&
                            std::none_of(members.begin(), members.end(), [&](const auto& m) {
                              return m.seat.agent == cat("agent-", link.agent);
                            });
      if (job_.agents[link.agent].is_down && is_known)
        job_.checkers.violate("L6: a snapshot's round waits for a lost host");
      continue;
    }
    const Worker& worker = job_.workers[link.worker];
    const bool is_quiet = link.up.empty() && link.down.empty() && !link.client_gone &&
                          worker.alive && worker.link == i && job_.flows(link);
    const auto& asked = asked_[i];
    if (is_quiet && job_.scheduler.stores.empty() && worker.joined == asked.generation &&
        memory_.arena(worker).version > asked.version) {
      job_.checkers.violate("L6: a snapshot's round waits for a rank that has nothing to say");
    }
  }
}

// Checks that only processes that hang are named as such, and ended.
void SchedulerShell::check_blamed(const wire::Message& message) {
  const auto* evict = std::get_if<wire::Evict>(&message);
  const auto is_evicted = [&](const Worker& worker) {
    return worker.hung && worker.incarnation == evict->incarnation;
  };
  if (evict != nullptr && evict->is_hung &&
      std::none_of(job_.workers.begin(), job_.workers.end(), is_evicted)) {
    job_.checkers.violate("P57: a rank is ended for a standstill that is not its own");
  }
  const auto* waiting = std::get_if<wire::Waiting>(&message);
  if (waiting == nullptr || waiting->reason.kind != wire::Reason::Kind::kHoldsUp) return;
  const auto is_named = [&](const Worker& worker) {
    return worker.hung && static_cast<std::int64_t>(worker.process) == waiting->reason.pid;
  };
  if (std::none_of(job_.workers.begin(), job_.workers.end(), is_named)) {
    job_.checkers.violate("P57: a rank is named that does not hold up the others");
  }
}

// If the process's host can be reached, its kernel answers whether something listens at the
// process's endpoint; if not, the process is dead.
void SchedulerShell::probe(const controller::Probe& probe) {
  const auto found =
      std::find_if(job_.workers.begin(), job_.workers.end(), [&](const Worker& worker) {
        return worker.incarnation == probe.incarnation && worker.node_id == probe.node_id;
      });
  const AgentProcess& host = job_.agents[found->agent];
  const bool is_reached =
      !host.is_down && host.cut_until <= job_.now && host.away_until <= job_.now;
  if (is_reached && !found->alive) not_there_.push_back({probe.node_id, probe.incarnation});
}

void SchedulerShell::tell_and_check_evictions(const controller::Event& event) {
  std::set<std::string> lost_before;
  for (const auto& member : job_.scheduler.machine->members()) {
    if (is_lost(member)) lost_before.insert(member.seat.node_id);
  }
  tell(event);
  check_evictions(lost_before);
}

void SchedulerShell::timer() {
  tell_and_check_evictions(controller::TimePassed{});
  if (job_.scheduler.deadline && *job_.scheduler.deadline <= job_.now) {
    job_.checkers.violate("L4: the scheduler wants to be woken at once, for ever");
  }
}

void SchedulerShell::check_evictions(const std::set<std::string>& lost_before) {
  for (const Worker& worker : job_.workers) {
    const auto* member = job_.scheduler.machine->find(worker.node_id);
    if (member == nullptr || !is_lost(*member) || lost_before.contains(worker.node_id) ||
        member->seat.incarnation != worker.incarnation) {
      continue;
    }
    if (worker.alive && job_.struck == bit(Fault::kReset)) {
      job_.checkers.violate(
          cat("P47: rank ", worker.rank, " was taken for lost since connections ended"));
    }
    if (worker.alive && job_.now > worker.disturbed + kLease) {
      job_.checkers.violate(cat("L2: rank ", worker.rank, " was evicted but lives and was heard"));
    }
    // With several hosts, a restarted scheduler does not believe an agent about places of another
    // host until that host is lost. An agent that is interrupted tells nothing: it ends the job.
    const bool waits = (job_.setup.hosts && job_.now < job_.scheduler.since + 2 * kLease) ||
                       job_.had(Fault::kInterrupt);
    const bool was_told = !waits && worker.agent != kNone && job_.agents[worker.agent].runs() &&
                          job_.now > job_.agents[worker.agent].disturbed + kLease;
    if (!worker.alive && was_told && job_.now > worker.died_at + kLease / 2) {
      job_.checkers.violate(cat("L2: the agent had told that rank ", worker.rank,
                                " is dead, but only its silence was noticed"));
    }
  }
}

// Checks that what the scheduler sends about a value is durable.
void SchedulerShell::check_told(Index link, const wire::Message& message) {
  const auto is_durable = [&](const std::string& key, wire::KeyVersion version,
                              const std::string* value) {
    const auto found = journal_.values().find(key);
    const bool there = found != journal_.values().end() && found->second.version >= version;
    const bool same = there && (value == nullptr || found->second.version > version ||
                                found->second.value == *value);
    if (!same) {
      job_.checkers.violate("P36: the scheduler told of a value that a crash could make it forget");
    }
  };
  if (const auto* got = std::get_if<wire::Got>(&message); got && got->found) {
    is_durable(got->key, got->version, &got->value);
  } else if (const auto* kept = std::get_if<wire::Kept>(&message); kept && kept->version != 0) {
    const Worker& worker = job_.workers[job_.links[link].worker];
    is_durable(kept->id == kPutId ? key_of(worker.rank) : kList, kept->version, nullptr);
  }
}

}  // namespace holdfast::sim
