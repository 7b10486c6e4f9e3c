// Which of an agent's places are parameter servers'.
#include "core/agent/machine_for_test.h"

namespace holdfast::agent {
namespace {

// Of two workers and two servers, this host has one each.
class ServersTest : public AgentTest {
 protected:
  void start(std::int32_t spares) {
    Options options{.job = "job", .workers = {"1", "3"}, .world_size = 4, .servers = 2};
    options.spares = spares;
    machine_.emplace(std::move(options));
    step(Started{});
  }
};

TEST_F(ServersTest, HaveTheGreatestNumbers) {
  start(0);
  EXPECT_FALSE(places_.at("1").serves);
  EXPECT_TRUE(places_.at("3").serves);
  dies(at("3"), 137);
  EXPECT_EQ(places_.at("3").attempt, 2U);
  EXPECT_TRUE(places_.at("3").serves);
}

// A new server is there as soon, and the spares are for the workers.
TEST_F(ServersTest, NoSpareTakesTheirPlaces) {
  start(1);
  ASSERT_EQ(spares_.size(), 1U);
  dies(at("3"), 137);
  EXPECT_TRUE(promoted_.empty());
  EXPECT_TRUE(places_.at("3").serves);
  EXPECT_EQ(places_.at("3").attempt, 2U);
}

// They would wait for ever, if the workers have never asked for a rank.
TEST_F(ServersTest, EndWithTheWorkers) {
  machine_.emplace(Options{.job = "job", .workers = {"0", "1"}, .world_size = 2, .servers = 1});
  step(Started{});
  const Process server = at("1");
  dies(at("0"), 0);
  EXPECT_EQ(graces_, 1);
  step(GraceOver{});
  ASSERT_EQ(killed_.size(), 1U);
  EXPECT_EQ(killed_[0].process, server);
}

TEST_F(ServersTest, ASpareMayTakeAWorkersPlace) {
  start(1);
  dies(at("1"), 137);
  ASSERT_EQ(promoted_.size(), 1U);
  EXPECT_EQ(promoted_[0].node_id, "1");
}

}  // namespace
}  // namespace holdfast::agent
