#include "core/controller/job.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/assert.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

constexpr std::size_t index(StageEvent event) {
  return static_cast<std::size_t>(event);
}

constexpr Transition<Stage> kStageTransitions[] = {
    {Stage::kAssembling, index(StageEvent::kBegun), Stage::kStopping, "all processes have come"},
    {Stage::kStopping, index(StageEvent::kBegun), Stage::kStopping, "another scheduler goes on"},
    {Stage::kStopping, index(StageEvent::kPlanned), Stage::kRepairing},
    {Stage::kRepairing, index(StageEvent::kBegun), Stage::kStopping,
     "a rank is lost or came back, or another scheduler goes on"},
    {Stage::kRepairing, index(StageEvent::kRepaired), Stage::kRunning},
    {Stage::kRunning, index(StageEvent::kBegun), Stage::kStopping,
     "a rank is lost or came back, or a group or pages are lost"},
    {Stage::kAssembling, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kStopping, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kRepairing, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kRunning, index(StageEvent::kOver), Stage::kEnded},
};

}  // namespace

std::span<const Transition<Stage>> stage_transitions() {
  return kStageTransitions;
}

const char* name(StageEvent event) {
  constexpr const char* kNames[] = {"generation begun", "planned", "repaired", "over"};
  return kNames[index(event)];
}

Job::Job(Options chosen, std::optional<wire::Formation> stored)
    : options(std::move(chosen)), roster(options.lease, options.replacement_timeout) {
  if (stored) {
    formation = std::move(*stored);
  } else {
    formation.job = options.job;
    formation.run_id = options.run_id;
  }
}

void Job::enter(StageEvent event) {
  const auto* row = std::find_if(
      std::begin(kStageTransitions), std::end(kStageTransitions),
      [&](const auto& t) { return t.from == formation.stage && t.event == index(event); });
  HF_ASSERT(row != std::end(kStageTransitions));
  formation.stage = row->to;
}

wire::Formation Job::record() const {
  wire::Formation whole = formation;
  if (!roster.assembled()) return whole;
  whole.roster.clear();
  for (const auto& member : roster.each()) whole.roster.push_back(member.seat);
  return whole;
}

void Job::store() {
  Store store{.formation = formation, .seats = {}, .kept = std::exchange(keeps, {}), .writers = {}};
  const std::set<Rank> changed = roster.take_changed();
  if (!std::exchange(is_roster_stored, is_roster_stored || roster.assembled())) {
    store.formation = record();
  } else {
    for (const Rank rank : changed) store.seats.emplace(rank, roster.at(rank).seat);
  }
  emit(std::move(store));
}

void apply(const Store& store, wire::Formation& record) {
  if (store.formation) {
    auto roster = std::exchange(record.roster, {});
    record = *store.formation;
    if (record.roster.empty()) record.roster = std::move(roster);
  }
  for (const auto& [rank, seat] : store.seats) {
    record.roster.at(static_cast<std::size_t>(rank)) = seat;
  }
}

void Job::note(Note::Kind kind, Rank rank, const Reason& reason, std::uint64_t detected_ns) {
  emit(Note{kind, formation.generation, formation.version, rank, reason, detected_ns});
}

void Job::send(Link link, wire::Message message) {
  if (connections.open(link) != nullptr) emit(Send{link, std::move(message)});
}

void Job::tell_agents(const wire::Message& message) {
  for (const auto& [link, state] : agents.here()) send(link, message);
}

void Job::refuse(Link link, Reason reason) {
  send(link, wire::Refused{{}, std::move(reason)});
  dismiss(link);
}

// Like refuse(), for a message that no sound process of the job sends. It is noted.
void Job::reject(Link link, Reason reason) {
  note(Note::Kind::kRefused, connections.rank_at(link), reason);
  refuse(link, std::move(reason));
}

// The agent at this link is forgotten only after the present event, which may still look at it.
void Job::dismiss(Link link) {
  connections.dismiss(link);
  emit(Close{link});
}

std::size_t Job::unanswered(Link link) const {
  return key_values.pending(link) + outbox.held_answers(link);
}

// If all processes are on the scheduler's own host, every death is known at once.
bool Job::watches_hosts() const {
  if (options.host_silence == Duration{} || !roster.assembled() || has_ended()) return false;
  const bool elsewhere = !options.own_host.empty() && roster.at(0).seat.host != options.own_host;
  // A vacant seat was given away and not taken up yet: it may be another host's.
  return roster.memories() > 1 || elsewhere || roster.has_vacant();
}

bool Job::is_own_agent(const std::string& agent_id) const {
  return agent_id.starts_with(options.own_agent);
}

bool Job::is_here(const Agent& agent) const {
  return !options.own_agent.empty() && is_own_agent(agent.agent_id);
}

std::optional<Reason> excess(std::initializer_list<const std::string*> names) {
  for (const std::string* name : names) {
    if (name->size() <= kMaxNameBytes) continue;
    return Reason{.kind = Reason::Kind::kTooMuch,
                  .count = static_cast<std::int64_t>(name->size()),
                  .total = static_cast<std::int64_t>(kMaxNameBytes),
                  .detail = "bytes of a name"};
  }
  return std::nullopt;
}

}  // namespace holdfast::controller
