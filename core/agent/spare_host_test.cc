// How an agent takes and drops places as it is told; an agent of a spare host, and what its spares
// prepare.
#include <utility>

#include "core/agent/machine_for_test.h"

namespace holdfast::agent {
namespace {

// A spare takes the memory of a state, if no state that it might get is on this host yet.
TEST_F(AgentTest, SparesOfASpareHostAloneTakeMemoryBeforehand) {
  start(1);
  EXPECT_FALSE(spares_.at(0).prepares);
  spares_.clear();
  Options options;
  options.job = "job";
  options.world_size = 4;
  options.spare_host = true;
  options.spares = options.takes = 2;
  machine_.emplace(std::move(options));
  step(Started{});
  ASSERT_EQ(spares_.size(), 2U);
  for (const Spawn& spare : spares_) EXPECT_TRUE(spare.prepares);
  step(Received{wire::Places{{"w3"}}});
  step(PauseOver{pauses_.back().pause});
  ASSERT_EQ(spares_.size(), 3U);
  EXPECT_FALSE(spares_.back().prepares);
}

// One message may give a place and take another one away, and may be repeated.
TEST_F(AgentTest, HasThePlacesThatItIsTold) {
  start(0, 1, false, 4);
  step(LinkUp{});
  const int before = spawned_;
  step(Received{wire::Places{{"w1", "w3"}}});
  EXPECT_EQ(spawned_, before + 1);
  EXPECT_EQ(killed_.size(), 1U);
  ASSERT_TRUE(places_.contains("w3"));
  const auto said = said_.size();
  step(Received{wire::Places{{"w3", "w1"}}});
  EXPECT_EQ(spawned_, before + 1);
  EXPECT_EQ(killed_.size(), 1U);
  EXPECT_EQ(said_.size(), said) << "it has nothing new to tell";
}

TEST_F(AgentTest, DropsThePlacesThatAnotherAgentHas) {
  start(0, 1, false, 4);
  step(LinkUp{});
  const Process process = at("w1");
  said_.clear();
  step(Received{wire::Places{{"w0"}}});
  EXPECT_FALSE(exit_);
  ASSERT_EQ(killed_.size(), 1U);
  EXPECT_EQ(killed_[0].process, process);
  const auto state = std::get<wire::AgentState>(said_.back());
  ASSERT_EQ(state.places.size(), 1U);
  EXPECT_EQ(state.places[0].node_id, "w0");
  EXPECT_EQ(state.takes, 1U);
  dies(process, 137);
  EXPECT_EQ(machine_->places().size(), 1U) << "nothing is started in its place";
}

TEST_F(AgentTest, WaitsAsASpareHostOnceAllItsPlacesAreAnothersOnes) {
  start(0, 1, false, 4);
  step(LinkUp{});
  step(Received{wire::Places{}});
  EXPECT_EQ(told_.back(), (Reason{.kind = Reason::Kind::kGivenAway, .count = 2, .total = 0}));
  EXPECT_EQ(spares_.size(), 2U);
  dies(at("w0"), 137);
  dies(at("w1"), 137);
  EXPECT_FALSE(exit_);
  step(Received{wire::Places{{"w3"}}});
  ASSERT_EQ(promoted_.size(), 1U);
  EXPECT_EQ(promoted_[0].node_id, "w3");
}

}  // namespace
}  // namespace holdfast::agent
