// Setup: the parameters of one simulated run: how many ranks, who starts them, which faults, how
// rare these are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "sim/choices.h"

namespace holdfast::sim {

enum class Fault : std::uint8_t {
  kKill,           // A worker or spare dies at once (SIGKILL).
  kKillScheduler,  // The scheduler dies; a store in flight is lost.
  kStoreCrash,     // The scheduler dies when its store is durable but before it knows.
  kBreak,          // A connection breaks; what is in flight is lost or not.
  kPause,          // A worker is stopped for a while, shorter or longer than its lease.
  kWipe,           // A worker dies and its arena is lost, as if its host had died.
  kKillAll,        // All workers die at once.
  kHiccup,         // Everything stands still until the next deadline passes.
  kStall,          // A connection delivers nothing for a while.
  kDouble,         // Without an agent: a second process is started for a place that is taken.
  kStoreFails,     // The journal can not be written: the scheduler ends itself.
  kStop,           // A worker is stopped as its agent can see (SIGSTOP), shortly or for long.
  kSpawnFails,     // The agent's next processes, up to three, can not be started.
  kStopScheduler,  // The scheduler is stopped (SIGSTOP), shortly or for long.
  kForeign,        // A process of another host asks for a place of the job (P31).
  // The next four end the job, with a reason.
  kUserError,  // The training says that it can not go on.
  kEarlyExit,  // The program ends with exit code 0 in the midst of its training.
  kInterrupt,  // The user interrupts an agent.
  kKillAgent,  // An agent dies, not the scheduler's, and its processes with it.
  // Only with several hosts.
  kLoseHost,   // A host is lost with all that it had; its connections end, or just go silent.
  kCutHost,    // For a while nothing comes from a host or gets to it.
  kLinksFail,  // The group's links fail, though nobody dies (P48).
  kMove,       // A user asks for a host's ranks to move to other hosts.
  kReset,      // All connections of a host end at once, though it lives (a firewall's flush).
  // Only in the world "hung".
  kHang,  // A training thread makes no progress any more; the rest of its process lives.
  // Only in the world "lossy".
  kLosePages,  // Memory errors take pages of a rank's state or gradients.
  // Only where snapshots are made.
  kWipeAll,   // All workers die, and all that is in the memory of all hosts is lost.
  kPowerCut,  // All is lost but the disk. A new run begins with the snapshots there.
  // Only in the world "paused".
  kPauseJob,  // A user pauses the job, and has it go on later.
};
inline constexpr std::uint32_t kFaults = 29;
[[nodiscard]] constexpr std::uint32_t bit(Fault fault) {
  return std::uint32_t{1} << static_cast<std::uint32_t>(fault);
}
inline constexpr std::uint32_t kDoom = bit(Fault::kUserError) | bit(Fault::kEarlyExit) |
                                       bit(Fault::kInterrupt) | bit(Fault::kKillAgent);

// Which of the possible transitions comes first, unless a choice picks another one.
enum class Order : std::uint8_t { kMessagesFirst, kTrainersFirst, kInTurn, kNewestFirst };
inline constexpr std::uint32_t kOrders = 4;

inline constexpr std::size_t kMostRanks = 128;

struct Setup {
  Rank ranks = 2;
  Rank servers = 0;  // The last so many of the ranks are parameter servers.
  Version steps = 3;
  bool agent = true;  // Agents start the processes; else a person does, with attempt 0.
  std::int32_t agents = 1;
  bool hosts = false;           // Each agent is on a host of its own, with memory of its own.
  bool spare_host = false;      // One more agent takes the places of a lost host.
  bool oversubscribe = false;   // Any agent may take the places of a lost host.
  bool restarts = false;        // The command of a lost host is started again, on another one.
  bool proof = false;           // By hand: the scheduler's shell sees deaths of its own host.
  bool replaced = true;         // By hand: a person starts new processes for dead ones.
  bool private_is_own = false;  // A part of each rank's state is not on all other ranks.
  bool holders = false;         // The next rank holds that part, too, as if on another host.
  std::int32_t spares = 0;
  bool asks = true;            // The programs ask for a rank and train; else they just end well.
  bool exchange = true;        // Ranks exchange key-values before their sessions.
  bool bound_spares = false;   // There is one spare for each place.
  bool rehearsals = false;     // The agents have ranks rehearsed.
  bool snapshots = false;      // They are made,
  Duration snapshot_every{};   // so often,
  Version snapshot_steps = 0;  // and only at multiples of so many steps; 0: at any.
  std::size_t snapshots_kept = 2;
  std::int32_t max_restarts = 100;
  std::uint32_t faults = 2;        // The most faults in a run.
  std::uint32_t kinds = 0;         // Which faults may happen: a mask of bit(Fault).
  std::uint32_t fault_rarity = 1;  // A fault happens at one in so many chances.
  bool burst = false;              // Soon after a fault the next one is likely.
  std::uint32_t order_rarity = 0;  // How rarely a transition comes out of order; 0: never.
  Order order = Order::kMessagesFirst;

  [[nodiscard]] Rank workers() const { return ranks - servers; }
  [[nodiscard]] bool serves(Rank rank) const { return rank >= workers(); }
};

// The place of a rank. An agent knows the places of servers by their numbers.
[[nodiscard]] std::string node_of(const Setup& setup, Rank rank);
// Whether this is the place of a server.
[[nodiscard]] bool is_servers(const Setup& setup, const std::string& node_id);

// Draws the setup of the world with this name; nullopt: there is none. "swarm" draws everything on
// one host, "hosts" everything on several. In "wide" one of two hosts with 64 ranks each is lost,
// or the spare host. In "farewell" little is trained, so that most faults happen while the agents
// end. In "rehearsed" agents of any of these have ranks
// rehearsed. In "hung" training threads hang; in "lossy" ranks lose pages of memory. In "served"
// some of the ranks of a job of "swarm" or "hosts" are parameter servers. In "snapshots" these are
// made, and all memory is lost, of some hosts or of all, perhaps with the scheduler. In "paused" a
// job of "swarm", "hosts", "hung", "served" or "snapshots" is paused now and then. "small",
// "smallest" and "exchange" are for exhaustive runs with 2 ranks: 2 faults without an exchange, or
// 1 fault with one.
[[nodiscard]] std::optional<Setup> draw_setup(const std::string& world, Choices& choices);

[[nodiscard]] std::string to_text(const Setup& setup);

}  // namespace holdfast::sim
