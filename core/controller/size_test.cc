// The controller machine for the largest world, and its table of seats.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/text.h"
#include "core/controller/machine.h"

namespace holdfast::controller {
namespace {

using wire::Stage;

// A world of 10,000: formed, one rank lost and found, and gone on.
TEST(ControllerSize, FormsTenThousandRanksAgain) {
  constexpr Rank kRanks = 10'000;
  Machine machine({.job = "job",
                   .world_size = kRanks,
                   .topology_timeout = std::chrono::seconds(60),
                   .lease = std::chrono::seconds(30),
                   .replacement_timeout = std::chrono::seconds(120),
                   .one_host = true},
                  std::nullopt);
  std::map<Link, wire::Assignment> parts;
  const auto step = [&](const Event& event) {
    for (std::vector<Event> events{event}; !events.empty();) {
      const auto* heard = std::get_if<Received>(&events.back());
      if (heard && !machine.peers().contains(heard->link)) {
        (void)machine.step(Instant{}, Connected{heard->link, wire::PeerKind::kWorker});
      }
      const auto actions = machine.step(Instant{}, events.back());
      events.pop_back();
      for (const auto& action : actions) {
        if (std::holds_alternative<Store>(action)) events.emplace_back(Stored{});
        const auto* send = std::get_if<Send>(&action);
        const auto* part = send ? std::get_if<wire::Assignment>(&send->message) : nullptr;
        if (part) parts[send->link] = *part;
      }
    }
  };
  const auto come = [&](Link link, Rank rank, std::uint64_t attempt) {
    step(Received{link, wire::Register{.job = "job",
                                       .node_id = cat(rank),
                                       .incarnation = link,
                                       .attempt = attempt,
                                       .host = "host",
                                       .memory = "memory"}});
  };
  const auto report = [&](Link link) {
    step(Received{link, wire::Report{machine.generation(), 4, 4}});
  };
  step(Started{});
  for (Rank rank = 0; rank < kRanks; ++rank) come(static_cast<Link>(rank) + 1, rank, 1);
  for (Link link = 1; link <= kRanks; ++link) report(link);
  ASSERT_EQ(machine.stage(), Stage::kRunning);
  step(Connected{30'000, wire::PeerKind::kAgent});
  step(Received{30'000, wire::AgentState{"job", "agent", "host", {{"5000", 20'000, 2, true}}}});
  come(20'000, 5'000, 2);
  ASSERT_EQ(machine.stage(), Stage::kStopping);
  for (Link link = 1; link <= kRanks; ++link) report(link == 5'001 ? 20'000 : link);
  ASSERT_EQ(machine.stage(), Stage::kRunning);
  EXPECT_EQ(machine.generation(), 2U);
  EXPECT_EQ(parts[20'000].rank, 5'000);
  EXPECT_EQ(parts[20'000].world_size, kRanks);
  EXPECT_EQ(machine.formation().roster.size(), 10'000U);
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
