// What the controller knows of the job, and its means to send and to record. All rules of the
// controller share one Job: Rendezvous, Membership, Owners, ... (core/controller/machine.h). It
// decides nothing itself.
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

// Whether and when snapshots are made.
struct SnapshotOptions {
  bool wanted = false;
  Duration every{};      // Time from one to the next; to the first, 30 s at most;
  Version steps = 0;     // and only at multiples of so many steps; 0: at any.
  std::size_t keep = 2;  // So many are kept; at least 1.
};

struct Options {
  std::string job;
  std::uint64_t run_id = 0;        // 64 random bits, for a new formation.
  std::int32_t world_size = 0;     // All ranks,
  std::int32_t servers = 0;        // of which so many, the last ones, are parameter servers.
  Duration topology_timeout{};     // How long all processes may take to come.
  Duration lease{};                // Silence after which a process counts as lost.
  Duration replacement_timeout{};  // How long a lost rank's successor is waited for.
  // Least silence after which one of several hosts counts as lost; 0: hosts are not watched.
  Duration host_silence{};
  // How long the others may wait for a rank before its agent ends it; 0: without a limit.
  Duration hang_timeout{};
  bool takes_drills = false;
  bool by_agent = false;  // An agent has started this scheduler, and would start a successor.
  std::string own_host;   // This scheduler's host, as in Register.
  // Prefix of Register::memory of processes under this scheduler's kernel, which share its clock.
  std::string boot;
  // Prefix of the id of the agent that started this scheduler; empty: unknown, so any agent counts.
  std::string own_agent;
  // Host of the scheduler that this one replaces, which has lost its lease: it may be lost as well.
  std::string suspect_host;
  SnapshotOptions snapshots;
  bool comes_back = false;    // Somebody starts this scheduler again, however it ends.
  Duration agent_patience{};  // How long that agent is waited for after the job's end.
};

// What leads a job from one wire::Stage to the next.
enum class StageEvent : std::uint8_t {
  kBegun,     // A new generation has begun.
  kPlanned,   // All ranks have reported, and the version to go on from is chosen.
  kRepaired,  // All ranks hold that version.
  kOver,      // The job has ended, well or not.
};
[[nodiscard]] const char* name(StageEvent event);
// {stage × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<wire::Stage>> stage_transitions();

inline constexpr std::size_t kMaxNameBytes = 1024;  // For a node, host, memory or agent.

struct Job {
  Job(Options chosen, std::optional<wire::Formation> stored);

  Options options;
  wire::Formation formation;  // The newest formation, with an empty roster: see `roster`.
  Roster roster;
  AgentDirectory agents;
  Connections connections;
  KeyValues key_values;
  Outbox outbox;
  std::vector<wire::KeyValue> keeps;  // Key-values to be stored with the next formation.
  bool is_roster_stored = false;  // The journal has the whole roster, or a Store under way has it.
  Instant now{};
  std::int64_t unix_ms = 0;  // `now` by the wall clock, while a message is looked at.
  Instant started{};
  Instant waits_count_from = Instant::min();  // That ranks waited before was by order.
  // After a restart: when all live processes are back, also those without a rank.
  Instant all_are_back{};

  void enter(StageEvent event);
  [[nodiscard]] wire::Formation record() const;  // The formation with its roster.
  void store();

  void emit(Action action) { outbox.add(std::move(action)); }
  void note(Note::Kind kind, Rank rank, const wire::Reason& reason, std::uint64_t detected_ns = 0);
  void send(Link link, wire::Message message);
  void tell_agents(const wire::Message& message);
  void refuse(Link link, wire::Reason reason);
  void reject(Link link, wire::Reason reason);
  void dismiss(Link link);
  // How many questions of this connection have no answer yet.
  [[nodiscard]] std::size_t unanswered(Link link) const;

  // Ranks from this number on are parameter servers.
  [[nodiscard]] Rank workers() const { return options.world_size - options.servers; }
  [[nodiscard]] bool has_ended() const { return formation.stage == wire::Stage::kEnded; }
  [[nodiscard]] bool watches_hosts() const;
  [[nodiscard]] bool is_own_agent(const std::string& agent_id) const;
  // Whether this agent is known to be on this scheduler's host.
  [[nodiscard]] bool is_here(const Agent& agent) const;
};

// Why one of these names is too long to be kept for a connection; nullopt: none is.
[[nodiscard]] std::optional<wire::Reason> excess(std::initializer_list<const std::string*> names);

}  // namespace holdfast::controller
