// The scheduler's process: plays the controller, its journal and its connections.
#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "sim/words.h"
#include "sim/world.h"

namespace holdfast::sim {

namespace {

constexpr Duration kAgentPatience = std::chrono::seconds(10);
constexpr Duration kHostSilence = std::chrono::milliseconds(500);
constexpr Duration kLinger = std::chrono::seconds(2);  // For processes that come after the end.

// Whether the member counts as dead because it was silent, whether its training has ended or not.
bool is_lost(const controller::Member& member) {
  return member.ending.kind == wire::Ending::Kind::kNotHeard &&
         (member.state == controller::SeatState::kSilent ||
          member.state == controller::SeatState::kLeft);
}

}  // namespace

Rank World::rank_in_roster(const std::string& node_id) const {
  const auto& members = scheduler_.machine->members();
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].seat.node_id == node_id) return static_cast<Rank>(i);
  }
  return kNoRank;
}

void World::start_scheduler() {
  scheduler_.starting = false;
  scheduler_.stores.clear();
  scheduler_.exits_at.reset();
  scheduler_.since = now_;
  scheduler_.paused_until = {};
  scheduler_.stopped.reset();
  scheduler_.machine.emplace(
      controller::Options{.job = "job",
                          .run_id = 7,
                          .world_size = setup_.ranks,
                          .topology_timeout = kTopologyTimeout,
                          .lease = kLease,
                          .replacement_timeout = kReplacementTimeout,
                          .host_silence = setup_.hosts ? kHostSilence : Duration{},
                          .by_agent = setup_.agent,
                          .own_host = setup_.hosts ? "host-0" : "",
                          .own_agent = setup_.hosts ? "agent-0" : "",
                          .agent_patience = kAgentPatience},
      durable_);
  for (auto& agent : agents_) agent.disturbed = std::max(agent.disturbed, now_);
  for (auto& worker : workers_) worker.disturbed = std::max(worker.disturbed, now_);
  std::vector<wire::KeyValue> kept;
  for (const auto& [key, pair] : durable_values_) kept.push_back(pair);
  std::vector<wire::Writer> writers;
  for (const auto& [writer, last] : durable_writers_) writers.push_back(last);
  tell_controller(controller::Started{std::move(kept), std::move(writers)});
}

void World::kill_scheduler(std::int32_t code, bool store_survives) {
  const bool by_itself = scheduler_.exits_at && *scheduler_.exits_at <= now_;
  // The queued stores may be one transaction or several: any number of the oldest may be durable.
  const auto queued = static_cast<std::uint32_t>(scheduler_.stores.size());
  const std::uint32_t survive = !store_survives || queued == 0 ? 0
                                : queued == 1                  ? 1
                                                               : 1 + choices_.pick(queued);
  for (std::uint32_t i = 0; i < survive; ++i) make_durable(scheduler_.stores[i]);
  checkers_.forgot(durable_ ? durable_->reached : 0);
  scheduler_.machine.reset();
  scheduler_.stores.clear();
  scheduler_.deadline.reset();
  scheduler_.exits_at.reset();
  scheduler_.signal = 0;
  proofs_.clear();
  not_there_.clear();
  bool speaks = false;
  for (Index i = first_link_; i < links_.size(); ++i) speaks = speaks || !links_[i].down.empty();
  const bool loses = code != 0 && !by_itself && speaks && choices_.pick(2) == 0;
  for (Index i = first_link_; i < links_.size(); ++i) {
    auto& link = links_[i];
    link.scheduler_open = false;
    link.scheduler_gone = true;
    link.up.clear();
    if (loses) link.down.clear();
  }
  if (setup_.agent) {
    agent_hears_of_death(0, scheduler_.process, code, false);
  } else {
    person_.scheduler = !by_itself && setup_.replaced;
    scheduler_.lost = !by_itself && !setup_.replaced;
  }
}

void World::tell_controller(const controller::Event& event) {
  for (const auto& action : scheduler_.machine->step(now_, event)) carry_out(action);
  check_agent_hears_first();
  scheduler_.deadline = scheduler_.machine->deadline();
}

// Checks that an agent which connects in time hears of the job's end before the workers do. Else it
// would take their exits for deaths.
void World::check_agent_hears_first() {
  const bool worker_told = std::exchange(worker_told_end_, false);
  if (!setup_.agent || agent_told_end_ || !worker_told) return;
  if (now_ < scheduler_.ended_at + kAgentPatience / 2) {
    checkers_.violate("P32: a worker hears of the end before the agent does");
  }
}

void World::store_done() {
  make_durable(scheduler_.stores.front());
  scheduler_.stores.pop_front();
  tell_controller(controller::Stored{});
}

// A digest of what a message may change in the formation and its stage.
std::uint64_t World::record_print() const {
  const wire::Formation formation = scheduler_.machine->formation();
  std::uint64_t print = derive(formation.generation, formation.version,
                               static_cast<std::uint64_t>(formation.stage), formation.recoveries);
  for (const auto& seat : formation.roster) {
    print = derive(print, seat.incarnation, seat.finished, seat.version);
  }
  return derive(print, formation.reached);
}

// Tells the checkers that the scheduler knows of a committed step, if the report is not too late.
void World::hear_of_step(const wire::Message& message) {
  const auto* progress = std::get_if<wire::Progress>(&message);
  const bool counts = progress != nullptr && scheduler_.machine->stage() == wire::Stage::kRunning &&
                      scheduler_.machine->generation() == progress->generation;
  if (counts) checkers_.told(progress->version);
}

void World::hear(Index link, wire::Message message) {
  accept(link);
  bool fenced = false;
  if (links_[link].worker != kNone && !std::holds_alternative<wire::Register>(message)) {
    const Worker& worker = workers_[links_[link].worker];
    const auto* member = scheduler_.machine->find(worker.node_id);
    fenced = scheduler_.machine->assembled() && member != nullptr &&
             member->seat.incarnation != worker.incarnation;
  }
  const std::uint64_t before = fenced ? record_print() : 0;
  if (!fenced) hear_of_step(message);
  tell_controller(controller::Received{link + 1, std::move(message)});
  if (fenced && record_print() != before) {
    checkers_.violate("S6: the word of a fenced process changed the record");
  }
}

void World::carry_out(const controller::Action& action) {
  if (log_) tell(cat("    scheduler: ", to_words(action)));
  fold(action.index());
  if (const auto* store = std::get_if<controller::Store>(&action)) {
    scheduler_.stores.push_back(*store);
  } else if (const auto* send = std::get_if<controller::Send>(&action)) {
    const Index link = static_cast<Index>(send->link) - 1;
    Rank rank = kNoRank;
    Incarnation incarnation = 0;
    if (links_[link].worker != kNone) {
      const Worker& worker = workers_[links_[link].worker];
      incarnation = worker.incarnation;
      rank = rank_in_roster(worker.node_id);
    }
    fold(print_of(send->message) ^ send->link);
    checkers_.said(send->message, rank, incarnation, durable_);
    check_told(link, send->message);
    if (std::holds_alternative<wire::JobEnded>(send->message)) {
      (links_[link].worker == kNone ? agent_told_end_ : worker_told_end_) = true;
    }
    send_down(link, send->message);
  } else if (const auto* answer = std::get_if<controller::Answer>(&action)) {
    const auto& [key, value, version] = *answer->found;
    carry_out(controller::Send{answer->link, wire::Got{answer->id, true, key, value, version}});
  } else if (const auto* close = std::get_if<controller::Close>(&action)) {
    auto& link = links_[static_cast<Index>(close->link) - 1];
    link.closed_by_scheduler = link.scheduler_gone = true;
  } else if (const auto* question = std::get_if<controller::Probe>(&action)) {
    probe(*question);
  } else if (const auto* note = std::get_if<controller::Note>(&action)) {
    if (note->kind == controller::Note::Kind::kStop) checkers_.began(note->generation);
    const bool refused = note->kind == controller::Note::Kind::kRefused;
    if (refused || note->reason.kind == wire::Reason::Kind::kImpossible) {
      checkers_.violate("P43: what a sound process says is taken for what can not be");
    }
  } else if (const auto* end = std::get_if<controller::End>(&action)) {
    scheduler_.success = end->success;
    scheduler_.ended_at = now_;
  } else if (std::holds_alternative<controller::Leave>(action)) {
    scheduler_.exits_at = now_ + kLinger;
  }
}

// If the process's host can be reached, its kernel answers whether something listens at the
// process's endpoint; if not, the process is dead.
void World::probe(const controller::Probe& probe) {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.incarnation == probe.incarnation && worker.node_id == probe.node_id;
  });
  const AgentProcess& host = agents_[found->agent];
  const bool is_reached = !host.is_down && host.cut_until <= now_ && host.away_until <= now_;
  if (is_reached && !found->alive) not_there_.push_back({probe.node_id, probe.incarnation});
}

void World::tell_and_check_evictions(const controller::Event& event) {
  std::set<std::string> lost_before;
  for (const auto& member : scheduler_.machine->members()) {
    if (is_lost(member)) lost_before.insert(member.seat.node_id);
  }
  tell_controller(event);
  check_evictions(lost_before);
}

void World::controller_timer() {
  tell_and_check_evictions(controller::TimePassed{});
  if (scheduler_.deadline && *scheduler_.deadline <= now_) {
    checkers_.violate("L4: the scheduler wants to be woken at once, for ever");
  }
}

void World::check_evictions(const std::set<std::string>& lost_before) {
  for (const Worker& worker : workers_) {
    const auto* member = scheduler_.machine->find(worker.node_id);
    if (member == nullptr || !is_lost(*member) || lost_before.contains(worker.node_id) ||
        member->seat.incarnation != worker.incarnation) {
      continue;
    }
    if (worker.alive && struck_ == bit(Fault::kReset)) {
      checkers_.violate(
          cat("P47: rank ", worker.rank, " was taken for lost since connections ended"));
    }
    if (worker.alive && now_ > worker.disturbed + kLease) {
      checkers_.violate(cat("L2: rank ", worker.rank, " was evicted but lives and was heard"));
    }
    // With several hosts, a restarted scheduler does not believe an agent about places of another
    // host until that host is lost.
    const bool waits = setup_.hosts && now_ < scheduler_.since + 2 * kLease;
    const bool was_told = !waits && worker.agent != kNone && agents_[worker.agent].runs() &&
                          now_ > agents_[worker.agent].disturbed + kLease;
    if (!worker.alive && was_told && now_ > worker.died_at + kLease / 2) {
      checkers_.violate(cat("L2: the agent had told that rank ", worker.rank,
                            " is dead, but only its silence was noticed"));
    }
  }
}

}  // namespace holdfast::sim
