// What the controller machine and its table of seats cost in the largest job. Times are printed.
// That the work grows with what changes, and not with its square, is checked by counting.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "base/rounds_for_test.h"
#include "base/text.h"
#include "core/controller/machine.h"

namespace holdfast::controller {
namespace {

using wire::Stage;

constexpr Rank kRanks = 10'000;
constexpr Rank kPlaces = 8;  // Places of an agent, unless a test says otherwise.
constexpr Link kAgents = 100'000;
constexpr Link kSuccessor = 50'000;

// A controller with all ranks and their agents. Its stores are durable at once.
class Large {
 public:
  explicit Large(Rank ranks, Rank places = kPlaces, bool hosts = false)
      : ranks_(ranks), places_(places), hosts_(hosts) {
    step(Started{});
  }

  void step(const Event& event) {
    std::size_t stores = 0;
    for (const auto& action : machine_.step(now_, event)) {
      if (std::holds_alternative<Store>(action)) ++stores;
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      ++sent_;
      if (std::holds_alternative<wire::JobProgress>(send->message)) ++progress_;
      if (const auto* part = std::get_if<wire::Assignment>(&send->message)) part_ = *part;
    }
    for (; stores > 0; --stores) step(Stored{});
    deadline_ = machine_.deadline();  // The shell asks for it after every event, too.
  }

  // Prints and keeps what `work` costs: processor time, messages sent, looks at members.
  template <class Work>
  void measure(const char* name, Work work) {
    const std::uint64_t sent = sent_;
    const std::uint64_t looks = machine_.looks();
    const std::clock_t begun = std::clock();
    work();
    const double ms = 1e3 * static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    looks_ = machine_.looks() - looks;
    said_ = sent_ - sent;
    std::printf("%6d ranks: %-22s %9.1f ms, %8llu sent, %10llu looks\n", ranks_, name, ms,
                static_cast<unsigned long long>(said_), static_cast<unsigned long long>(looks_));
  }

  void tell_agent(Link agent, Rank lost = kNoRank) {
    const auto first = static_cast<Rank>(agent - kAgents) * places_;
    wire::AgentState state{.job = "job", .agent_id = cat("agent-", agent), .host = "host"};
    for (Rank rank = first; rank < std::min(first + places_, ranks_); ++rank) {
      const bool is_lost = rank == lost;
      state.places.push_back(
          {cat(rank), is_lost ? kSuccessor : link_of(rank), is_lost ? 2U : 1U, true});
    }
    step(Received{agent, std::move(state)});
  }
  void come(Link link, Rank rank, std::uint64_t attempt) {
    step(Connected{link, wire::PeerKind::kWorker});
    step(Received{link, wire::Register{.job = "job",
                                       .node_id = cat(rank),
                                       .incarnation = link,
                                       .attempt = attempt,
                                       .host = "host",
                                       .memory = cat("memory-", hosts_ ? rank / places_ : 0),
                                       .endpoint = cat("host:", 1 + rank % 60'000)}});
  }
  // With several hosts, the agents speak after their processes, which costs more.
  void register_all() {
    const auto all_come = [&] {
      for (Rank rank = 0; rank < ranks_; ++rank) come(link_of(rank), rank, 1);
    };
    if (hosts_) all_come();
    for (Link agent = kAgents; agent < kAgents + static_cast<Link>(agents()); ++agent) {
      step(Connected{agent, wire::PeerKind::kAgent});
      tell_agent(agent);
    }
    if (!hosts_) all_come();
  }
  template <class Message>
  void all_say(Message message) {
    for (Rank rank = 0; rank < ranks_; ++rank) step(Received{link_of(rank), message});
  }
  void report_all() { all_say(wire::Report{machine_.generation(), 4, 4}); }
  void lose(Rank rank) {
    step(Closed{link_of(rank)});
    tell_agent(kAgents + static_cast<Link>(rank / places_), rank);
    come(kSuccessor, rank, 2);
    lost_ = rank;
  }

  [[nodiscard]] Rank agents() const { return (ranks_ + places_ - 1) / places_; }
  [[nodiscard]] Link link_of(Rank rank) const {
    return rank == lost_ ? kSuccessor : static_cast<Link>(rank) + 1;
  }
  [[nodiscard]] const Machine& machine() const { return machine_; }
  [[nodiscard]] std::uint64_t looks() const { return looks_; }
  [[nodiscard]] std::uint64_t said() const { return said_; }
  [[nodiscard]] std::uint64_t progress() const { return progress_; }
  [[nodiscard]] const wire::Assignment& part() const { return part_; }

 private:
  Rank ranks_;
  Rank places_;
  bool hosts_;  // Each agent is on its own host.
  Machine machine_{{.job = "job",
                    .world_size = ranks_,
                    .topology_timeout = std::chrono::seconds(60),
                    .lease = std::chrono::seconds(30),
                    .replacement_timeout = std::chrono::seconds(120),
                    .host_silence = hosts_ ? std::chrono::milliseconds(500) : Duration{}},
                   std::nullopt};
  Instant now_{};
  std::optional<Instant> deadline_;
  Rank lost_ = kNoRank;
  std::uint64_t sent_ = 0;
  std::uint64_t progress_ = 0;
  std::uint64_t looks_ = 0;
  std::uint64_t said_ = 0;
  wire::Assignment part_;
};

TEST(ControllerSize, TheWorkGrowsWithWhatChanges) {
  Large world(kRanks);
  const auto looks_at_most = [&](std::uint64_t times) { EXPECT_LE(world.looks(), times * kRanks); };
  world.measure("all register", [&] { world.register_all(); });
  ASSERT_EQ(world.machine().stage(), Stage::kStopping);
  looks_at_most(30);
  world.measure("all report", [&] { world.report_all(); });
  ASSERT_EQ(world.machine().stage(), Stage::kRunning);
  looks_at_most(30);
  world.measure("all beat", [&] { world.all_say(wire::Heartbeat{}); });
  looks_at_most(1);
  for (const auto step : {Version{5}, Version{6}, Version{7}}) {
    world.measure("all make a step", [&] { world.all_say(wire::Progress{1, step}); });
    looks_at_most(5);
  }
  EXPECT_EQ(world.progress(), static_cast<std::uint64_t>(world.agents())) << "within no time";
  world.measure("one rank is replaced", [&] {
    world.lose(5'000);
    world.all_say(wire::Report{2, 7, 7});
    world.all_say(wire::Progress{2, 8});
  });
  ASSERT_EQ(world.machine().stage(), Stage::kRunning);
  EXPECT_EQ(world.machine().generation(), 2U);
  EXPECT_EQ(world.part().world_size, kRanks);
  looks_at_most(30);
  EXPECT_LE(world.said(), 2U * kRanks + 2U * static_cast<std::uint64_t>(world.agents()));
  EXPECT_EQ(world.machine().formation().roster.size(), static_cast<std::size_t>(kRanks));
  world.measure("all end", [&] { world.all_say(wire::Finished{2, 8}); });
  looks_at_most(10);
}

// Seconds of processor time from the first process to the step after a process was replaced: the
// least of several runs. Meanwhile an agent repeats its table.
double whole_life(Rank ranks, Rank places, bool hosts) {
  double least = 0;
  for (int run = 0; run < 2; ++run) {
    const std::clock_t begun = std::clock();
    Large world(ranks, places, hosts);
    world.register_all();
    world.report_all();
    world.all_say(wire::Progress{1, 5});
    for (int times = 0; times < 20; ++times) world.tell_agent(kAgents);
    world.lose(ranks / 2);
    world.all_say(wire::Report{2, 5, 5});
    world.all_say(wire::Progress{2, 6});
    EXPECT_EQ(world.machine().stage(), Stage::kRunning);
    EXPECT_EQ(world.machine().generation(), 2U);
    const double took = static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    least = run == 0 ? took : std::min(least, took);
  }
  return least;
}

// Looks at members are counted above. Work with agents, places and addresses is timed here: with
// four times as many ranks, a square would be 16 times as much.
TEST(ControllerSize, FourTimesAsManyRanksCostNoSquare) {
  if (rounds(4) != 4) GTEST_SKIP() << "a sanitizer's own work would be measured";
  struct Way {
    const char* name;
    bool one_agent;
    bool hosts;
  };
  for (const Way& way : {Way{"one agent", true, false}, Way{"hosts of 8", false, true}}) {
    const auto life = [&](Rank ranks) {
      return whole_life(ranks, way.one_agent ? ranks : kPlaces, way.hosts);
    };
    const double few = life(kRanks / 4);
    const double many = life(kRanks);
    std::printf("%s: %d ranks %.0f ms, %d ranks %.0f ms\n", way.name, kRanks / 4, 1e3 * few, kRanks,
                1e3 * many);
    EXPECT_LT(many, 10 * few) << way.name;
  }
}

TEST(ControllerTable, EverySeatStateHasANameAndCanBeLeft) {
  for (std::size_t state = 0; state < kSeatStates; ++state) {
    const auto from = static_cast<SeatState>(state);
    EXPECT_NE(std::string(name(from)), "");
    EXPECT_EQ(after(from, SeatEvent::kTakenOver), SeatState::kHeld);
  }
}

}  // namespace
}  // namespace holdfast::controller
