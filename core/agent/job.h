// What the agent knows of its part of the job, and its means to act. All rules of the agent share
// one Job: Spares, Shutdown, RehearsalRunner, ... (core/agent/machine.h). It decides nothing
// itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/prng.h"
#include "core/agent/events.h"
#include "core/agent/rehearsals.h"
#include "core/table.h"
#include "wire/messages.h"

namespace holdfast::agent {

struct Options {
  std::string job;
  std::string agent_id;
  std::string host;
  std::vector<std::string> workers;  // Node ids of this host's places.
  std::int32_t world_size = 0;       // Of the whole job: its workers and servers.
  std::int32_t servers = 0;          // The node ids of the servers are the greatest numbers.
  std::uint64_t seed = 0;            // Seed of the incarnations: a random one for each agent.
  // The agent starts a scheduler. With etcd and several hosts, every agent does so: one scheduler
  // serves, and the others stand by.
  bool runs_scheduler = false;
  bool stands_by = false;  // With etcd: the job's first scheduler is on another host.
  bool continues = false;  // Its scheduler goes on from the journal of a dead agent's scheduler.
  std::int32_t spares = 0;
  // The agent has no places until the scheduler gives it those of a lost host; `spares` wait for
  // them.
  bool spare_host = false;
  std::int32_t takes = 0;         // How many places of lost hosts it would take.
  bool drained = false;           // It takes no places any more, and ends once it has none.
  bool bound_spares = false;      // One spare bound to each of `workers`, in place of `spares`.
  std::int32_t max_restarts = 3;  // Restarts of one place, or of spares, with no step between.
  std::string max_restarts_option = "--max_restarts";  // The option's name, for messages.
  RehearsalOptions rehearsals = {};
  bool takes_drills = false;
  // How long an interrupted agent waits for a snapshot before it ends; 0: it does not wait.
  Duration snapshot_patience{};
};

inline constexpr const char* kSchedulerNode = "scheduler";

// How far the agent is. A state is only followed by later ones.
enum class State : std::uint8_t {
  // A process that dies is replaced. The state stays when all processes have ended well and other
  // hosts go on.
  kRunning,
  kDone,  // The job has ended, well as far as is known: processes that end are not replaced.
  // Nothing is replaced, all processes are ended, and then the scheduler has to hear of it.
  kEnding,
  kExited,
};
inline constexpr std::size_t kStates = 4;
[[nodiscard]] const char* name(State state);
// {state × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<State>> transitions();

// One place of the job as its agent holds it.
struct Place {
  std::string node_id;
  Role role = Role::kWorker;
  Process process = 0;   // 0: no process.
  Process previous = 0;  // The process that died last.
  Incarnation incarnation = 0;
  std::uint64_t attempt = 0;
  bool done = false;             // The process ended with exit code 0.
  std::int32_t failures = 0;     // Since the last step was made.
  std::uint64_t pause = 0;       // The next process waits for the end of this pause; 0: none.
  std::int32_t not_started = 0;  // How often in a row the process could not be started.
  wire::Ending ending;           // How `previous` ended.
  Predecessor predecessor;       // What the next process is told.
  std::uint64_t detected_ns = 0;
  std::string error;                   // The newest exception that ended a process of this place,
  Version error_version = kNoVersion;  // and the last step that this process had made.
};

// The link to the scheduler.
enum class LinkState : std::uint8_t { kNever, kUp, kDown };

struct Job {
  explicit Job(Options chosen);

  Options options;  // `spare_host`, `takes` and `drained` change with what the scheduler says.
  State state = State::kRunning;
  std::size_t event = 0;      // Index of the event that is being handled.
  std::vector<Place> places;  // If a scheduler runs here, its place is the first.
  std::set<Process> running;  // Spawned, and not known to have exited.
  Prng prng;                  // Draws the incarnations.
  Process next_process = 1;
  std::uint64_t next_pause = 1;
  LinkState link = LinkState::kNever;
  bool are_places_told = false;  // The scheduler was sent the newest places,
  bool is_rest_told = true;      // and all else of its AgentState.
  bool is_paused = false;        // The job, by order, as the scheduler has said on this link.
  std::uint64_t remarks = 0;     // How many of the job's remarks the user has been told.
  Actions actions;

  void enter(State next);
  void emit(Action action) { actions.push_back(std::move(action)); }
  void send(wire::Message message);  // If the link is up.
  void kill(Process process, bool gently = false) { emit(Kill{process, gently}); }
  [[nodiscard]] Process new_process();
  std::uint64_t pause(Duration how_long);
  // A pause that doubles with each time, up to 2 s.
  std::uint64_t pause(std::int32_t times);

  // The place that this process has now; nullptr: none.
  [[nodiscard]] Place* place_of(Process process);
  // Whether the place is a parameter server's.
  [[nodiscard]] bool is_servers(const std::string& node_id) const;
  [[nodiscard]] bool is_ending() const { return state >= State::kEnding; }
  [[nodiscard]] std::int64_t worker_places() const {
    return std::count_if(places.begin(), places.end(),
                         [](const Place& p) { return p.role == Role::kWorker; });
  }
  // Whether all ranks run here, and did so from the start. An agent that has lost places may be cut
  // off, so its word is not enough.
  [[nodiscard]] bool is_local() const {
    return worker_places() == options.world_size && std::ssize(options.workers) == worker_places();
  }
  // Whether this host is a spare host without places, so far or again.
  [[nodiscard]] bool waits_for_places() const {
    return options.spare_host && !options.drained && worker_places() == 0;
  }
  // Whether all workers of this host have ended, and no others are awaited. Nobody needs servers
  // then, if all ranks are here: workers that never asked for a rank leave them waiting for ever.
  [[nodiscard]] bool workers_done() const;
};

}  // namespace holdfast::agent
