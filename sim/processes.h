// The processes of a simulated job: workers, agents, the scheduler, and the person who starts dead
// processes again. They are records: other classes of the simulation make them act.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/whereabouts.h"
#include "core/agent/machine.h"
#include "core/controller/machine.h"
#include "core/member/machine.h"
#include "core/trainer/machine.h"

namespace holdfast::sim {

using Index = std::size_t;
inline constexpr Index kNone = ~Index{0};

// Removes an element, and returns it.
template <class T>
T take(std::vector<T>& from, std::size_t which) {
  T taken = std::move(from[which]);
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(which));
  return taken;
}

// Each agent numbers its processes from 1. In the world, all processes have different numbers.
[[nodiscard]] agent::Process number_in_world(Index agent, agent::Process at_agent);
[[nodiscard]] agent::Process number_at_agent(agent::Process in_world);

// The state of a worker's program.
enum class Program : std::uint8_t {
  kSpare,
  kUnplaced,
  kExchanging,
  kOpening,
  kTraining,
  kEnded,
  kFailed
};

// A worker's part in the exchange before the sessions (ValueExchange).
struct Exchange {
  Index link = kNone;  // The connection for key-values.
  Instant since{};     // Since when it waits for the values of the other ranks.
  bool kept = false;   // A value is stored under its key: its own, or a predecessor's.
  bool over = false;   // It was told that the job is over.
  std::set<Rank> got;
  wire::KeyValue list{.key = {}, .value = {}, .version = 0};  // The list as it was last read.
  wire::Put enlisting;    // The last Put of the list; id 0: none yet.
  bool answered = true;   // `enlisting` was answered.
  bool enlisted = false;  // It has appended itself to the list.
};

struct Worker {
  agent::Process process = 0;
  Index agent = kNone;  // The agent that has started it; kNone: a person, or it is `foreign`.
  std::string node_id;
  Incarnation incarnation = 0;
  std::uint64_t attempt = 0;
  bool serves = false;  // It was started as a parameter server.
  std::optional<member::Machine> machine;
  std::optional<trainer::Machine> trainer;
  Program program = Program::kUnplaced;
  std::deque<trainer::Work> work;  // The work of the training thread, oldest first.
  bool half = false;               // The first half of the oldest work is done.
  Generation stopped_up_to = 0;    // It joins no group of a generation up to this one any more.
  bool sums_busy = false;          // It was stopped in the middle of a sum.
  bool repair_stopped = false;     // A newer generation has stopped its repair.
  bool said_parked = false;        // It has reported, and has no order to carry out yet.
  bool awaits_end = false;         // A server's last step: it waits for the workers to end.
  Version began_at = 0;            // The version at which its program began the step under way.
  bool alive = true;
  bool foreign = false;           // A process of another host that asks for a place (P31).
  bool over = false;              // It was told that the job is over, or that it has no place.
  std::optional<bool> job_ended;  // It was told that the job has ended: well, or not.
  std::optional<std::int32_t> leaving;  // It will exit with this code.
  std::int32_t signal = 0;              // A signal that was sent and is not delivered yet.
  Index link = kNone;
  Exchange exchange;
  Rank rank = kNoRank;
  std::vector<Index> host_of;   // By rank, in the generation that it was told to go to.
  std::vector<Rank> holder_of;  // By rank; only with several hosts.
  Generation joined = 0;        // The generation of the group that it is in; 0: in none.
  std::uint64_t operation = 0;  // How many of the group's operations have ended for it.
  Instant paused_until{};
  std::optional<Instant> stopped;         // Since when it is stopped, if its agent can see that.
  std::uint64_t steps = 0;                // How many it has made.
  std::optional<trainer::PartKept> kept;  // Is copied, and its trainer has not heard of it yet.
  std::optional<Whereabouts> hung;        // Where its training thread makes no progress any more.
  Instant died_at{};
  std::uint64_t addresses_seen = 0;      // The name of the address book that it last looked at.
  std::optional<Instant> addresses_due;  // Then it asks the scheduler for the address book.
  Instant gives_up_at{};  // Without a connection until then, the scheduler is out of reach.
  bool cut_off = false;   // It has given up on the scheduler.
  Instant disturbed{};    // Until when, at the last time, the scheduler could not hear it.
};

struct SchedulerProcess {
  agent::Process process = 0;
  bool starting = false;
  bool lost = false;  // Nobody will start it again.
  std::optional<controller::Machine> machine;
  std::deque<controller::Store> stores;  // Stores under way, oldest first.
  std::optional<Instant> deadline;
  std::optional<Instant> exits_at;  // Set after the machine's End.
  std::int32_t signal = 0;
  bool success = false;
  Instant ended_at{};
  Instant since{};
  Instant paused_until{};
  std::optional<Instant> stopped;  // Since when it is stopped, if its agent can see that.
};

struct Pause {
  Instant until{};
  std::uint64_t pause = 0;
};

// What an agent does for a snapshot, and until when at least.
struct Writing {
  wire::Snapshot order;
  Instant until{};
};

struct AgentProcess {
  explicit AgentProcess(agent::Options options) : machine(std::move(options)) {}
  agent::Machine machine;
  bool alive = true;
  Index link = kNone;
  Instant connects_at{};    // The earliest time of the next connection.
  Instant gives_up_at{};    // Without a connection until then, it gives up.
  Instant disturbed{};      // Until when, at the last time, the scheduler could not hear it.
  bool is_hurried = false;  // Interrupted while it only waited for others: it may exit at once.
  std::vector<agent::Died> deaths;         // Deaths of which it was not told yet.
  std::deque<agent::Process> not_spawned;  // Failed starts of which it was not told yet.
  std::vector<agent::Promote> promotions;  // On their way to the spare.
  std::vector<agent::Process> rehearsals;  // Processes that rehearse now.
  std::vector<Instant> graces;
  std::vector<Pause> pauses;
  std::optional<Writing> writing;
  std::optional<Instant> next_look;  // Only while a process is stopped.
  Instant last_look{};
  Instant stood_still{};  // Until when it stood still, at the last time.
  std::optional<agent::Exit> exited;
  std::optional<wire::Addresses> addresses;  // Those that it wrote for the workers of its host.
  bool knows_end = false;                    // One of its processes had heard of the job's end.
  Instant cut_until{};                       // With hosts: its host is cut off until then,
  Instant away_until{};                      // or can make no connections until then.
  bool is_down = false;                      // Its host was lost silently: no kernel of it answers.
  bool is_host_lost = false;                 // Its host is lost, or may be taken for lost.
  [[nodiscard]] bool runs() const { return alive && !exited; }
  // One of its processes has died. `lifeline`: it learns that first by the lifeline, without an
  // exit code. `job_ended`: what the process had heard of the job's end.
  void hear_of_death(agent::Process process, std::int32_t code, bool lifeline,
                     std::optional<bool> job_ended = {});
};

struct Person {  // A person who starts dead processes again by hand.
  struct Errand {
    std::string node_id;
    Instant at{};
  };
  std::vector<Errand> workers;
  bool scheduler = false;
  Instant paused_at{};   // When somebody has paused the job, at the last time,
  Instant resumes_at{};  // and when it shall go on.
  std::uint32_t left = 30;
};

}  // namespace holdfast::sim
