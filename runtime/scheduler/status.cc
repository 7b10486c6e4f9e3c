#include "runtime/scheduler/status.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/loop.h"
#include "runtime/scheduler/recovery_report.h"
#include "wording/job_states.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using controller::SeatState;
using wire::Stage;

const char* in_words(Stage stage) {
  switch (stage) {
    case Stage::kAssembling:
      return wording::kAssembling;
    case Stage::kStopping:
      return wording::kStopping;
    case Stage::kRepairing:
      return wording::kRepairing;
    case Stage::kRunning:
      return wording::kRunning;
    case Stage::kEnded:
      return wording::kEnded;
  }
  return "unknown";
}

const char* state_of(const controller::Machine& machine) {
  const bool is_running = machine.stage() == Stage::kRunning;
  if (is_running && machine.head().is_paused())
    return machine.stands_still() ? wording::kPaused : wording::kPausing;
  if (is_running && !machine.held_up_by().empty()) return wording::kStandingStill;
  return machine.is_recovering() ? wording::kRecovering : in_words(machine.stage());
}

const char* state_of(const controller::Member& member, Stage stage) {
  switch (member.state) {
    case SeatState::kFinished:
    case SeatState::kOrphaned:
      return "finishing";
    case SeatState::kLeft:
      return "finished";
    case SeatState::kDead:
    case SeatState::kDeserted:
      return "dead, waiting for its successor";
    case SeatState::kSilent:
      return "lost, waiting for its successor";
    case SeatState::kHeld:
      break;
  }
  if (member.link == 0) return "not connected";
  if (stage == Stage::kRunning) return "training";
  return member.joined ? "waiting for the recovery" : "preparing";
}

// Seconds since the rank told of its newest step; null: it has told of none.
nlohmann::ordered_json age_of_step(const controller::Member& member) {
  if (member.stepped == Instant{}) return nullptr;
  return std::chrono::duration<double>(io::Loop::now() - member.stepped).count();
}

// In milliseconds; null: the rank has not told yet.
nlohmann::ordered_json time_of(const controller::Member& member, std::uint32_t us) {
  return member.own_us == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(us / 1000.0);
}

// Of what the remark is, in a word for programs.
const char* kind_of(const wire::Reason& remark) {
  switch (remark.kind) {
    case wire::Reason::Kind::kDrill:
      return "drill";
    case wire::Reason::Kind::kSlow:
      return "slow";
    case wire::Reason::Kind::kReplicas:
      return "replicas";
    case wire::Reason::Kind::kPagesLost:
      return "pages";
    case wire::Reason::Kind::kDamaged:
      return "damaged";
    case wire::Reason::Kind::kFromSnapshot:
    case wire::Reason::Kind::kSnapshotFailed:
    case wire::Reason::Kind::kSnapshotUnreadable:
      return "snapshot";
    case wire::Reason::Kind::kPaused:
    case wire::Reason::Kind::kUnpaused:
      return "pause";
    default:
      return "other";
  }
}

nlohmann::ordered_json describe(const wire::Remarked& remark, std::uint64_t number) {
  const auto& [unix_ms, what] = remark;
  return {
      {"remark", number},
      {"at", unix_ms == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(iso_8601(unix_ms))},
      {"kind", kind_of(what)},
      {"rank", what.rank == kNoRank ? nlohmann::ordered_json() : nlohmann::ordered_json(what.rank)},
      {"pid", what.pid == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(what.pid)},
      {"sentence", wording::in_words(what)}};
}

// A successor that has not reported yet: nobody knows its step.
bool is_unknown(const controller::Member& member, Rank rank) {
  return rank != kNoRank && !member.joined;
}

nlohmann::ordered_json describe(const controller::Member& member, Rank rank, Stage stage,
                                Rank workers) {
  const bool serves = rank == kNoRank ? member.serves : rank >= workers;
  const auto holds = nlohmann::ordered_json::parse(member.holds, nullptr, false);
  return {{"rank", rank == kNoRank ? nullptr : nlohmann::ordered_json(rank)},
          {"role", serves ? "server" : "worker"},
          {"holds", holds.is_object() ? holds : nlohmann::ordered_json()},
          {"node_id", member.seat.node_id},
          {"pid", member.seat.pid},
          {"host", member.seat.host},
          {"state", state_of(member, stage)},
          {"version", is_unknown(member, rank) ? nlohmann::ordered_json()
                                               : nlohmann::ordered_json(member.version)},
          {"step_age_s", age_of_step(member)},
          {"own_step_ms", time_of(member, member.own_us)},
          {"between_ms", time_of(member, member.between_us)},
          {"loss", std::isfinite(member.loss) ? nlohmann::ordered_json(member.loss) : nullptr}};
}

nlohmann::ordered_json describe(const wire::RehearsalState& rehearsal) {
  const bool made = rehearsal.version != kNoVersion;
  return {{"node_id", rehearsal.node_id},
          {"version", made ? nlohmann::ordered_json(rehearsal.version) : nullptr},
          {"verdict", wire::name(rehearsal.verdict)},
          {"sentence", rehearsal.sentence}};
}

}  // namespace

std::string status_json(const controller::Machine& machine, std::int32_t workers,
                        std::int32_t servers, bool under_tls,
                        const std::deque<TakenPlaces::Seeker>& seekers,
                        const std::deque<std::string>& reports) {
  const wire::Formation& head = machine.head();
  auto ranks = nlohmann::ordered_json::array();
  Version least = kNoVersion;
  for (const auto& [node_id, member] : machine.arrivals()) {
    least = 0;
    ranks.push_back(describe(member, kNoRank, head.stage, workers));
  }
  for (const auto& member : machine.members()) {
    const auto rank = static_cast<Rank>(ranks.size());
    if (!is_unknown(member, rank)) least = std::min(least, member.version);
    ranks.push_back(describe(member, rank, head.stage, workers));
  }
  auto spares = nlohmann::ordered_json::array();
  auto rehearsals = nlohmann::ordered_json::array();
  for (const auto& [link, agent] : machine.agents()) {
    if (agent.is_silent) continue;
    for (const auto& spare : agent.spares) {
      spares.push_back({{"host", agent.host},
                        {"node_id", spare.node_id.empty() ? nlohmann::ordered_json(nullptr)
                                                          : nlohmann::ordered_json(spare.node_id)},
                        {"state", spare.is_ready ? "ready" : "starting"}});
    }
    for (const auto& rehearsal : agent.rehearsals) rehearsals.push_back(describe(rehearsal));
  }
  auto without_place = nlohmann::ordered_json::array();
  for (const auto& [who, waits, why] : seekers) {
    // It has got its place since.
    if (waits && !machine.waits_for_place(who.node_id, who.pid)) continue;
    without_place.push_back({{"node_id", who.node_id},
                             {"pid", who.pid},
                             {"host", who.host},
                             {"state", waits ? "waits" : "was refused"},
                             {"why", why}});
  }
  auto holds_up = nlohmann::ordered_json::array();
  for (const auto& reason : machine.held_up_by()) {
    holds_up.push_back({{"rank", reason.rank}, {"sentence", wording::in_words(reason)}});
  }
  auto remarks = nlohmann::ordered_json::array();
  std::uint64_t number = 0;
  for (const auto& remark : machine.remarks()) {
    ++number;
    // The recovery's report says the same.
    const wire::Reason& what = remark.what;
    const bool is_cause = what.kind == wire::Reason::Kind::kPagesLost && what.detail.empty();
    if (!is_cause) remarks.push_back(describe(remark, number));
  }
  auto recoveries = nlohmann::ordered_json::array();
  for (const auto& report : reports) {
    auto json = nlohmann::ordered_json::parse(report, nullptr, false);
    if (json.is_object()) recoveries.push_back(std::move(json));
  }
  auto snapshots = nlohmann::ordered_json::array();
  for (const auto& [version, name] : head.snapshots) {
    snapshots.push_back({{"version", version}, {"name", name}});
  }
  const nlohmann::ordered_json json = {{"job", head.job},
                                       {"state", state_of(machine)},
                                       {"generation", head.generation},
                                       {"version", least == kNoVersion ? head.version : least},
                                       {"world_size", workers},
                                       {"servers", servers},
                                       {"tls", under_tls},
                                       {"recoveries", head.recoveries},
                                       {"cause", wording::in_words(head.cause)},
                                       {"reason", wording::in_words(head.end)},
                                       {"ranks", ranks},
                                       {"spares", spares},
                                       {"rehearsals", rehearsals},
                                       {"holds_up", holds_up},
                                       {"remarks", remarks},
                                       {"snapshots", snapshots},
                                       {"without_place", without_place},
                                       {"recovery_reports", recoveries}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace holdfast::runtime
