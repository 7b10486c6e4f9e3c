// The controller machine for the largest world, and its table of seats. What it costs is printed;
// that it grows with what changes, and not with its square, is counted.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "base/text.h"
#include "core/controller/machine.h"

namespace holdfast::controller {
namespace {

using wire::Stage;

constexpr Rank kRanks = 10'000;
constexpr Rank kPlaces = 8;  // Of an agent.
constexpr Link kAgents = 100'000;
constexpr Link kSuccessor = 50'000;

// All ranks and their agents, and a shell whose stores are durable at once.
class Large {
 public:
  explicit Large(Rank ranks) : ranks_(ranks) { step(Started{}); }

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
    deadline_ = machine_.deadline();  // As the shell asks after every event.
  }

  // What is done costs so much processor time, is said so often, and looks at so many members.
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
    const auto first = static_cast<Rank>(agent - kAgents) * kPlaces;
    wire::AgentState state{.job = "job", .agent_id = cat("agent-", agent), .host = "host"};
    for (Rank rank = first; rank < std::min(first + kPlaces, ranks_); ++rank) {
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
                                       .memory = "memory"}});
  }
  void register_all() {
    for (Link agent = kAgents; agent < kAgents + static_cast<Link>(agents()); ++agent) {
      step(Connected{agent, wire::PeerKind::kAgent});
      tell_agent(agent);
    }
    for (Rank rank = 0; rank < ranks_; ++rank) come(link_of(rank), rank, 1);
  }
  template <class Message>
  void all_say(Message message) {
    for (Rank rank = 0; rank < ranks_; ++rank) step(Received{link_of(rank), message});
  }
  void report_all() { all_say(wire::Report{machine_.generation(), 4, 4}); }
  void lose(Rank rank) {
    step(Closed{link_of(rank)});
    tell_agent(kAgents + static_cast<Link>(rank / kPlaces), rank);
    come(kSuccessor, rank, 2);
    lost_ = rank;
  }

  [[nodiscard]] Rank agents() const { return (ranks_ + kPlaces - 1) / kPlaces; }
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
  Machine machine_{{.job = "job",
                    .world_size = ranks_,
                    .topology_timeout = std::chrono::seconds(60),
                    .lease = std::chrono::seconds(30),
                    .replacement_timeout = std::chrono::seconds(120)},
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

TEST(ControllerTable, EverySeatStateHasANameAndCanBeLeft) {
  for (std::size_t state = 0; state < kSeatStates; ++state) {
    const auto from = static_cast<SeatState>(state);
    EXPECT_NE(std::string(name(from)), "");
    EXPECT_EQ(after(from, SeatEvent::kTakenOver), SeatState::kHeld);
  }
}

}  // namespace
}  // namespace holdfast::controller
