// What is known of the job, and how its scheduler speaks and records. All rules of the controller
// share it: Rendezvous, Membership, Owners, ... (docs/ARCHITECTURE.md). It decides nothing itself.
#pragma once

#include <initializer_list>
#include <span>

#include "base/ids.h"
#include "core/controller/agent_directory.h"
#include "core/controller/connections.h"
#include "core/controller/events.h"
#include "core/controller/key_values.h"
#include "core/controller/outbox.h"
#include "core/controller/roster.h"
#include "core/table.h"
#include "wire/formation.h"
#include "wire/messages.h"

namespace holdfast::controller {

struct Options {
  std::string job;
  std::uint64_t run_id = 0;  // For a new record: 64 random bits.
  std::int32_t world_size = 0;
  Duration topology_timeout{};     // Until all processes have come.
  Duration lease{};                // Silence after which a process counts as lost.
  Duration replacement_timeout{};  // How long a lost rank is waited for.
  Duration host_silence{};         // Of several hosts: the least after which one counts as lost.
  bool by_agent = false;           // An agent has started this scheduler, and would start another.
  std::string own_host;            // As in Register.
  std::string boot;                // The memory (Register) of whoever has our clock begins so.
  std::string own_agent;           // How the id of that agent begins; empty: any agent may be it.
  std::string suspect_host;        // Its scheduler has lost its lease: it may be lost as well.
  bool comes_back = false;         // Somebody starts it again, after whatever end it may find.
  Duration agent_patience{};       // How long that agent is waited for, after the end.
};

// What leads a job from one wire::Stage to the next.
enum class StageEvent : std::uint8_t {
  kBegun,     // A new generation.
  kPlanned,   // All have reported: it is known from which version all go on.
  kRepaired,  // All hold that version.
  kOver,      // The job has ended, well or not.
};
[[nodiscard]] const char* name(StageEvent event);
// {stage × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<wire::Stage>> stage_transitions();

inline constexpr std::size_t kMaxNameBytes = 1024;  // Of a node, a host, a memory, an agent.

struct Job {
  Job(Options chosen, std::optional<wire::Formation> stored);

  Options options;
  wire::Formation formation;  // But for its roster.
  Roster roster;
  AgentDirectory agents;
  Connections connections;
  KeyValues key_values;
  Outbox outbox;
  std::vector<wire::KeyValue> keeps;  // To be stored with the next formation.
  bool is_roster_stored = false;      // Or on its way to it.
  Instant now{};
  Instant started{};
  Instant all_are_back{};  // After a restart, also who has no rank.

  void enter(StageEvent event);
  [[nodiscard]] wire::Formation record() const;  // With its roster.
  void store();

  void emit(Action action) { outbox.add(std::move(action)); }
  void note(Note::Kind kind, Rank rank, const wire::Reason& reason, std::uint64_t detected_ns = 0);
  void send(Link link, wire::Message message);
  void tell_agents(const wire::Message& message);
  void refuse(Link link, wire::Reason reason);
  void reject(Link link, wire::Reason reason);
  void dismiss(Link link);
  // How many of its questions have no answer yet.
  [[nodiscard]] std::size_t unanswered(Link link) const;

  [[nodiscard]] bool has_ended() const { return formation.stage == wire::Stage::kEnded; }
  [[nodiscard]] bool watches_hosts() const;
  [[nodiscard]] bool is_own_agent(const std::string& agent_id) const;
  // Its host is this scheduler's.
  [[nodiscard]] bool is_here(const Agent& agent) const;
};

// Names that are kept for a connection have a bound: why one of these is too long.
[[nodiscard]] std::optional<wire::Reason> excess(std::initializer_list<const std::string*> names);

}  // namespace holdfast::controller
