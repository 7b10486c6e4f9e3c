// Draws setups: every run first draws which faults can happen and how rare they are.
#include "sim/setup.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace holdfast::sim {
namespace {

constexpr std::uint32_t kOfHosts = bit(Fault::kLoseHost) | bit(Fault::kCutHost) |
                                   bit(Fault::kLinksFail) | bit(Fault::kMove) | bit(Fault::kReset);
constexpr std::uint32_t kNotDrawn = kOfHosts | bit(Fault::kHang) | bit(Fault::kLosePages) |
                                    bit(Fault::kWipeAll) | bit(Fault::kPowerCut) |
                                    bit(Fault::kPauseJob);
constexpr std::uint32_t kOfOneHost = 15;  // How many of the first faults are for one host.

// Draws which faults may happen. Many kinds hide each other, so half of the runs have only two.
void draw_kinds(Setup& setup, Choices& choices) {
  if (choices.pick(2) == 1) {
    for (int i = 0; i < 2; ++i) setup.kinds |= std::uint32_t{1} << choices.pick(kOfOneHost);
    return;
  }
  for (std::uint32_t fault = 0; fault < kFaults; ++fault) {
    if ((kNotDrawn >> fault & 1) != 0) continue;
    const bool doom = (kDoom >> fault & 1) != 0;
    if (choices.pick(2, doom ? 16 : 1) == 1) setup.kinds |= std::uint32_t{1} << fault;
  }
}

// Draws whether faults come in bursts, and the order of transitions.
void draw_order(Setup& setup, Choices& choices) {
  setup.burst = choices.pick(2) == 1;
  constexpr std::array<std::uint32_t, 5> kOrderRarities = {0, 2, 1, 5, 20};
  setup.order_rarity = kOrderRarities[choices.pick(kOrderRarities.size())];
  setup.order = static_cast<Order>(choices.pick(kOrders));
}

// Draws how often snapshots are made, and that all memory may be lost.
void draw_snapshots(Setup& setup, Choices& choices) {
  setup.snapshots = true;
  constexpr std::array kEvery = {Duration{2'000'000}, Duration{500'000}, Duration{10'000'000},
                                 Duration{50'000'000}};
  setup.snapshot_every = kEvery[choices.pick(kEvery.size())];
  setup.snapshot_steps = choices.pick(4) == 1 ? 2 : 0;
  setup.snapshots_kept = choices.pick(3) == 1 ? 1 : 2;
  for (const Fault fault : {Fault::kWipeAll, Fault::kPowerCut}) {
    if (choices.pick(3) != 2) setup.kinds |= bit(fault);
  }
}

Setup swarm(Choices& choices) {
  Setup setup;
  setup.ranks = 1 + static_cast<Rank>(choices.pick(4));
  setup.steps = 3 + choices.pick(3);
  setup.agent = choices.pick(3) != 2;
  if (setup.agent) {
    if (setup.ranks > 1) setup.agents = 1 + static_cast<std::int32_t>(choices.pick(2));
    setup.spares = static_cast<std::int32_t>(choices.pick(4));
    setup.bound_spares = setup.spares == 3;
    constexpr std::array kRestarts = {100, 100, 1, 0};
    setup.max_restarts = kRestarts[choices.pick(kRestarts.size())];
  } else {
    setup.proof = choices.pick(2) == 1;
    setup.replaced = choices.pick(8, 4) == 0;
  }
  const auto privacy = choices.pick(4);
  setup.private_is_own = privacy == 1 || privacy == 3;
  setup.holders = privacy == 3 && setup.ranks > 1;
  setup.faults = choices.pick(5);
  draw_kinds(setup, choices);
  constexpr std::array<std::uint32_t, 5> kFaultRarities = {30, 6, 2, 80, 160};
  setup.fault_rarity = kFaultRarities[choices.pick(kFaultRarities.size())];
  draw_order(setup, choices);
  setup.exchange = choices.pick(2) == 0;
  return setup;
}

// Two or three hosts with ranks, and perhaps a spare one.
Setup hosts(Choices& choices) {
  Setup setup;
  setup.hosts = true;
  setup.agents = 2 + static_cast<std::int32_t>(choices.pick(2));
  setup.ranks = setup.agents * (1 + static_cast<Rank>(choices.pick(2)));
  setup.steps = 3 + choices.pick(3);
  setup.spares = static_cast<std::int32_t>(choices.pick(2));
  setup.spare_host = choices.pick(3) != 2;
  setup.oversubscribe = choices.pick(2) == 1;
  const auto privacy = choices.pick(3);
  setup.holders = privacy == 0;
  setup.private_is_own = privacy != 2;
  setup.faults = 1 + choices.pick(4);
  constexpr std::array kAlso = {Fault::kKill,   Fault::kKillScheduler, Fault::kStoreCrash,
                                Fault::kBreak,  Fault::kPause,         Fault::kStall,
                                Fault::kHiccup, Fault::kKillAgent,     Fault::kStopScheduler};
  for (const Fault fault : {Fault::kLoseHost, Fault::kCutHost, Fault::kLinksFail}) {
    if (choices.pick(3) != 2) setup.kinds |= bit(fault);
  }
  for (const Fault fault : kAlso) {
    if (choices.pick(4) == 1) setup.kinds |= bit(fault);
  }
  constexpr std::array<std::uint32_t, 4> kFaultRarities = {30, 80, 160, 6};
  setup.fault_rarity = kFaultRarities[choices.pick(kFaultRarities.size())];
  draw_order(setup, choices);
  setup.exchange = choices.pick(4) == 1;
  if (choices.pick(2) == 1) setup.kinds |= bit(Fault::kMove);
  // Often kReset is the only fault: then nothing justifies that a host is taken for lost.
  if (const auto reset = choices.pick(4); reset >= 2) {
    setup.kinds = bit(Fault::kReset) | (reset == 2 ? setup.kinds : 0);
  }
  setup.restarts = choices.pick(3) == 1;
  if (choices.pick(6) == 1) draw_snapshots(setup, choices);
  return setup;
}

// Little training, or none, and the faults that agents meet while they end.
Setup farewell(Choices& choices) {
  Setup setup;
  setup.agents = choices.pick(4) == 1 ? 1 : 2;
  setup.ranks = 2 * (1 + static_cast<Rank>(choices.pick(2)));
  setup.steps = 1;
  setup.hosts = setup.agents == 2 && choices.pick(2) == 1;
  setup.oversubscribe = setup.hosts && choices.pick(2) == 1;
  setup.asks = choices.pick(3) != 1;
  setup.exchange = false;
  setup.max_restarts = choices.pick(4) == 1 ? 0 : 100;
  constexpr std::array kKinds = {Fault::kKill,      Fault::kKillScheduler, Fault::kStoreCrash,
                                 Fault::kBreak,     Fault::kStall,         Fault::kHiccup,
                                 Fault::kInterrupt, Fault::kUserError,     Fault::kStopScheduler,
                                 Fault::kReset,     Fault::kLoseHost};
  for (const Fault fault : kKinds) {
    const bool there = setup.hosts || (kOfHosts & bit(fault)) == 0;
    if (there && choices.pick(3) == 1) setup.kinds |= bit(fault);
  }
  setup.faults = 1 + choices.pick(3);
  constexpr std::array<std::uint32_t, 3> kFaultRarities = {30, 6, 80};
  setup.fault_rarity = kFaultRarities[choices.pick(kFaultRarities.size())];
  draw_order(setup, choices);
  return setup;
}

// Many ranks on each host, so that the lists in messages are long.
Setup wide(Choices& choices) {
  Setup setup;
  setup.hosts = true;
  setup.agents = 2;
  setup.ranks = static_cast<Rank>(kMostRanks);
  setup.steps = 2;
  setup.spare_host = true;
  setup.holders = setup.private_is_own = true;
  setup.faults = 1;
  setup.kinds = bit(Fault::kLoseHost);
  setup.fault_rarity = 4000;
  setup.exchange = false;
  setup.order = static_cast<Order>(choices.pick(kOrders));
  return setup;
}

// A job of "swarm" or "hosts" whose agents have ranks rehearsed.
Setup rehearsed(Choices& choices) {
  Setup setup = choices.pick(3) == 1 ? hosts(choices) : swarm(choices);
  setup.agent = setup.rehearsals = true;
  setup.spares = std::max(setup.spares, 1);
  return setup;
}

// One training thread hangs, or two one after the other; the scheduler or a connection may fail,
// too.
Setup hung(Choices& choices) {
  Setup setup;
  setup.agents = 1 + static_cast<std::int32_t>(choices.pick(2));
  setup.ranks = 2 * (1 + static_cast<Rank>(choices.pick(2)));
  setup.hosts = setup.agents == 2 && choices.pick(2) == 1;
  setup.steps = 6;
  setup.spares = static_cast<std::int32_t>(choices.pick(2));
  setup.faults = 1 + choices.pick(2);
  setup.kinds = bit(Fault::kHang);
  for (const Fault fault : {Fault::kKillScheduler, Fault::kStoreCrash, Fault::kBreak}) {
    if (choices.pick(4) == 1) setup.kinds |= bit(fault);
  }
  constexpr std::array<std::uint32_t, 3> kFaultRarities = {30, 6, 80};
  setup.fault_rarity = kFaultRarities[choices.pick(kFaultRarities.size())];
  draw_order(setup, choices);
  setup.exchange = false;
  return setup;
}

// Ranks lose pages, one rank at a time. Processes, the scheduler or connections may fail, too.
Setup lossy(Choices& choices) {
  Setup setup;
  setup.ranks = 2 + static_cast<Rank>(choices.pick(3));
  setup.steps = 4;
  setup.spares = static_cast<std::int32_t>(choices.pick(2));
  setup.faults = 1 + choices.pick(4);
  setup.kinds = bit(Fault::kLosePages);
  for (const Fault fault : {Fault::kKill, Fault::kKillScheduler, Fault::kStoreCrash, Fault::kBreak,
                            Fault::kPause, Fault::kHiccup}) {
    if (choices.pick(4) == 1) setup.kinds |= bit(fault);
  }
  constexpr std::array<std::uint32_t, 4> kFaultRarities = {30, 6, 80, 12};
  setup.fault_rarity = kFaultRarities[choices.pick(kFaultRarities.size())];
  draw_order(setup, choices);
  setup.exchange = false;
  if (choices.pick(4) == 1) draw_snapshots(setup, choices);
  return setup;
}

// A job of "swarm" or "hosts" some of whose ranks are parameter servers.
Setup served(Choices& choices) {
  Setup setup = choices.pick(2) == 1 ? hosts(choices) : swarm(choices);
  setup.ranks = std::max<Rank>(setup.ranks, 2);
  setup.servers = 1 + static_cast<Rank>(choices.pick(static_cast<std::uint32_t>(setup.ranks) - 1));
  // A holder is another worker; on several hosts, a server's is a server.
  setup.holders = setup.holders && (setup.hosts || setup.workers() > 1);
  return setup;
}

// Snapshots are made of longer jobs, and memory is lost, of some hosts or of all.
Setup snapshots(Choices& choices) {
  Setup setup;
  setup.hosts = choices.pick(2) == 1;
  setup.agents = 1 + static_cast<std::int32_t>(choices.pick(2)) + (setup.hosts ? 1 : 0);
  setup.ranks = setup.agents * (1 + static_cast<Rank>(choices.pick(2)));
  setup.steps = 8 + choices.pick(12);
  setup.spares = static_cast<std::int32_t>(choices.pick(2));
  setup.spare_host = setup.hosts && choices.pick(2) == 1;
  setup.oversubscribe = setup.hosts && choices.pick(4) != 3;
  setup.restarts = setup.hosts && choices.pick(3) == 1;
  const auto privacy = choices.pick(3);
  setup.holders = privacy == 2 && setup.ranks > 1;
  setup.private_is_own = privacy != 0;
  if (choices.pick(5) == 1 && setup.ranks > 1) setup.servers = 1;
  setup.holders = setup.holders && (setup.hosts || setup.workers() > 1);
  setup.faults = 1 + choices.pick(5);
  constexpr std::array kAlso = {Fault::kKill,   Fault::kKillScheduler, Fault::kStoreCrash,
                                Fault::kBreak,  Fault::kPause,         Fault::kStall,
                                Fault::kHiccup, Fault::kLosePages,     Fault::kStopScheduler};
  for (const Fault fault : kAlso) {
    if (choices.pick(4) == 1) setup.kinds |= bit(fault);
  }
  // Only pages of what workers share are lost in the simulation.
  if (setup.private_is_own || setup.servers > 0) setup.kinds &= ~bit(Fault::kLosePages);
  constexpr std::array kOfSeveral = {Fault::kLoseHost,  Fault::kCutHost, Fault::kReset,
                                     Fault::kLinksFail, Fault::kMove,    Fault::kKillAgent};
  for (const Fault fault : kOfSeveral) {
    if (setup.hosts && choices.pick(3) == 1) setup.kinds |= bit(fault);
  }
  if (!setup.hosts && choices.pick(3) == 1) setup.kinds |= bit(Fault::kWipe);
  constexpr std::array<std::uint32_t, 4> kFaultRarities = {160, 80, 320, 640};
  setup.fault_rarity = kFaultRarities[choices.pick(kFaultRarities.size())];
  draw_order(setup, choices);
  setup.exchange = false;
  if (choices.pick(3) == 1) setup.kinds = 0;
  draw_snapshots(setup, choices);
  return setup;
}

// Often nothing else happens to a job that is paused.
Setup paused(Choices& choices) {
  constexpr std::array kOf = {swarm, hosts, hung, served, snapshots};
  Setup setup = kOf[choices.pick(kOf.size())](choices);
  setup.kinds = bit(Fault::kPauseJob) | (choices.pick(4) == 1 ? 0 : setup.kinds);
  setup.faults += 1 + choices.pick(2);
  return setup;
}

Setup small(Choices& choices) {
  Setup setup;
  setup.steps = 1;
  setup.kinds =
      bit(Fault::kKill) | bit(Fault::kKillScheduler) | bit(Fault::kStoreCrash) | bit(Fault::kBreak);
  setup.order = static_cast<Order>(choices.pick(2));
  setup.exchange = false;
  return setup;
}

// Like "small", but no connection breaks by itself, so that a minute is enough for all runs.
Setup smallest(Choices& choices) {
  Setup setup = small(choices);
  setup.kinds &= ~bit(Fault::kBreak);
  return setup;
}

Setup with_exchange(Choices& choices) {
  Setup setup = small(choices);
  setup.exchange = true;
  setup.faults = 1;
  setup.spares = 1;
  return setup;
}

}  // namespace

std::optional<Setup> draw_setup(const std::string& world, Choices& choices) {
  if (world == "swarm") return swarm(choices);
  if (world == "hosts") return hosts(choices);
  if (world == "farewell") return farewell(choices);
  if (world == "rehearsed") return rehearsed(choices);
  if (world == "hung") return hung(choices);
  if (world == "lossy") return lossy(choices);
  if (world == "served") return served(choices);
  if (world == "snapshots") return snapshots(choices);
  if (world == "paused") return paused(choices);
  if (world == "wide") return wide(choices);
  if (world == "small") return small(choices);
  if (world == "smallest") return smallest(choices);
  if (world == "exchange") return with_exchange(choices);
  return std::nullopt;
}

std::string node_of(const Setup& setup, Rank rank) {
  return setup.agent && setup.servers > 0 ? cat(rank) : cat("w", rank);
}

bool is_servers(const Setup& setup, const std::string& node_id) {
  for (Rank rank = setup.workers(); rank < setup.ranks; ++rank) {
    if (node_id == node_of(setup, rank)) return true;
  }
  return false;
}

std::string to_text(const Setup& setup) {
  std::string text = cat(
      setup.ranks, " ranks, ", setup.servers == 0 ? "" : cat(setup.servers, " of them servers, "),
      setup.steps, " steps, ",
      setup.hosts   ? cat(setup.agents, " hosts", setup.spare_host ? " and a spare one" : "",
                        setup.oversubscribe ? ", oversubscribed if need be" : "",
                        setup.restarts ? ", started again once when lost" : "", ", ", setup.spares,
                          " spares on each")
      : setup.agent ? cat(setup.agents == 1 ? "an agent" : "two agents", " with ",
                          setup.bound_spares ? "bound" : cat(setup.spares),
                          " spares, max_restarts ", setup.max_restarts)
                    : cat("started by hand", setup.proof ? ", deaths are proven" : "",
                          setup.replaced ? "" : ", nobody is replaced"),
      !setup.private_is_own ? ""
      : setup.holders       ? ", private parts with holders"
                            : ", private parts without a copy");
  if (setup.snapshots) {
    text += cat(", snapshots every ", setup.snapshot_every.count() / 1000, " us",
                setup.snapshot_steps == 0 ? "" : cat(" at multiples of ", setup.snapshot_steps),
                ", of which ", setup.snapshots_kept, " are kept");
  }
  return cat(text, setup.exchange ? ", with an exchange" : "",
             setup.asks ? "" : ", programs that do nothing", ", at most ", setup.faults, " faults");
}

}  // namespace holdfast::sim
