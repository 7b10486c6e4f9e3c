// An agent of a spare host: what it has its spares do beforehand.
#include <utility>

#include "core/agent/machine_for_test.h"

namespace holdfast::agent {
namespace {

// The memory of a state, where none is on this host that a spare might get.
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

}  // namespace
}  // namespace holdfast::agent
