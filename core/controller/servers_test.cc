// Parameter servers: their ranks, and what their deaths cost.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using wire::Reason;
using wire::Stage;

// Two workers and two servers.
class ServersTest : public ControllerTest {
 protected:
  ServersTest() : ControllerTest(4) { begin_anew(2); }
  void begin_anew(std::int32_t servers) {
    options_.servers = servers;
    machine_.emplace(options_, std::nullopt);
    step(Started{});
  }
  static wire::Register server(const std::string& node, Incarnation incarnation,
                               std::uint64_t attempt = 0) {
    auto m = who(node, incarnation, attempt);
    m.serves = true;
    return m;
  }
  // On links 1 to 4, by rank.
  void all_come() {
    come(3, server("2", 3));
    come(4, server("3", 4));
    come(1, who("0", 1));
    come(2, who("1", 2));
  }
  void say(Link link, Version version, Version staged) {
    const bool is_server = link == 3 || link == 4 || link == 13;
    step(Received{link, wire::Report{machine_->generation(), version, staged, is_server}});
  }
  void all_train() {
    all_come();
    for (Link link = 1; link <= 4; ++link) say(link, 4, 4);
    ASSERT_EQ(machine_->stage(), Stage::kRunning);
  }
  // The first server dies, and its successor comes on link 13. All others have made step 5.
  void server_dies() {
    all_train();
    step(ProvenDead{"2", 3});
    come(13, server("2", 30));
    for (const Link link : {Link{1}, Link{2}, Link{4}}) say(link, 5, 5);
    ASSERT_EQ(machine_->stage(), Stage::kStopping);
  }
};

TEST_F(ServersTest, HaveTheLastRanksByNumber) {
  all_come();
  for (Link link = 1; link <= 4; ++link) EXPECT_EQ(rank(link), static_cast<Rank>(link) - 1);
}

TEST_F(ServersTest, HaveTheLastRanksByName) {
  come(1, server("a-10", 1));
  come(2, server("a-9", 2));
  come(3, who("b-10", 3));
  come(4, who("b-9", 4));
  EXPECT_EQ(rank(4), 0);
  EXPECT_EQ(rank(3), 1);
  EXPECT_EQ(rank(2), 2);
  EXPECT_EQ(rank(1), 3);
}

// Numbers from 0 on are ranks of workers, whatever the servers are called.
TEST_F(ServersTest, WhoseNamesAreNoNumbersLeaveTheWorkersTheirs) {
  come(1, server("s", 1));
  come(2, who("1", 2));
  come(3, server("r", 3));
  come(4, who("0", 4));
  EXPECT_EQ(rank(4), 0);
  EXPECT_EQ(rank(2), 1);
  EXPECT_EQ(rank(3), 2);
  EXPECT_EQ(rank(1), 3);
}

TEST_F(ServersTest, OneTooManyIsRefusedByName) {
  const Reason no_place{
      .kind = Reason::Kind::kPlacesTaken, .total = 2, .node_id = "9", .detail = "server"};
  come(3, server("2", 3));
  come(4, server("3", 4));
  come(9, server("9", 9));
  EXPECT_EQ(refusal(9), no_place) << "before all have come";
  all_train();
  come(10, server("9", 10));
  EXPECT_EQ(refusal(10), no_place);
}

TEST_F(ServersTest, AWorkerTooManyIsRefusedByName) {
  const Reason no_place{.kind = Reason::Kind::kPlacesTaken, .total = 2, .node_id = "9"};
  come(1, who("0", 1));
  come(2, who("1", 2));
  come(9, who("9", 9));
  EXPECT_EQ(refusal(9), no_place) << "before all have come";
  all_train();
  come(10, who("9", 10));
  EXPECT_EQ(refusal(10), no_place);
}

TEST_F(ServersTest, AJobWithoutServersRefusesOne) {
  begin_anew(0);
  come(1, server("0", 1));
  EXPECT_EQ(
      refusal(1),
      (Reason{.kind = Reason::Kind::kPlacesTaken, .total = 0, .node_id = "0", .detail = "server"}));
}

// Somebody starts a server by mistake, with the name of a worker that is awaited.
TEST_F(ServersTest, TakesNoWorkersPlace) {
  all_train();
  step(ProvenDead{"0", 1});
  come(11, server("0", 10));
  EXPECT_EQ(refusal(11).kind, Reason::Kind::kPlacesTaken);
  come(12, who("0", 11));
  EXPECT_EQ(rank(12), 0);
}

TEST_F(ServersTest, AJobEndsWellWhoseWorkersNeverTrain) {
  all_come();
  for (const Link link : {Link{1}, Link{2}}) {
    step(Received{link, wire::Finished{machine_->generation(), kNoVersion}});
    step(Closed{link});
  }
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(end_->success);
}

TEST_F(ServersTest, ASuccessorFinishesTheStepThatItsPredecessorHadStaged) {
  server_dies();
  say(13, 4, 5);
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(machine_->head().version, 5U);
  for (const Rank rank : {0, 1, 3}) {
    EXPECT_EQ(machine_->head().orders[static_cast<std::size_t>(rank)].act, wire::Act::kKeep);
  }
  EXPECT_EQ(machine_->head().orders[2].act, wire::Act::kFinish);
  step(Received{13, wire::Repaired{machine_->generation()}});
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

TEST_F(ServersTest, WhatAServerHadIsNowhereElse) {
  server_dies();
  say(13, kNoVersion, kNoVersion);
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNoPlan);
  EXPECT_EQ(end_->reason.rank, 2);
}

// The process on link 13 is on another host than its predecessor.
TEST_F(ServersTest, WhatAnotherServerHoldsComesFromThere) {
  all_train();
  step(ProvenDead{"2", 3});
  come(13, server("2", 30));
  say(13, kNoVersion, kNoVersion);
  for (const Link link : {Link{1}, Link{2}}) say(link, 5, 5);
  step(Received{
      4,
      wire::Report{machine_->generation(), 5, 5, true, {{.ward = 2, .version = 5, .staged = 5}}}});
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(machine_->head().version, 5U);
  const wire::Order& order = machine_->head().orders[2];
  EXPECT_EQ(order.act, wire::Act::kReceive);
  EXPECT_EQ(order.source.holder, kNoRank);
  EXPECT_EQ(order.private_source.holder, 3);
  step(Received{13, wire::Repaired{machine_->generation()}});
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

TEST_F(ServersTest, WorkersWhoseStateIsLostGetNoneFromServers) {
  all_train();
  for (const Link link : {Link{1}, Link{2}}) {
    step(ProvenDead{cat(link - 1), link});
    come(10 + link, who(cat(link - 1), 10 * link));
  }
  for (const Link link : {Link{3}, Link{4}}) say(link, 4, 4);
  for (const Link link : {Link{11}, Link{12}}) say(link, kNoVersion, kNoVersion);
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNoPlan);
  EXPECT_EQ(end_->reason.rank, kNoRank) << "it is the state that all workers share";
}

// Their workers may also have ended without joining the newest group, for which servers wait.
TEST_F(ServersTest, HearOfTheGoodEndOnceAllWorkersHaveLeft) {
  all_train();
  const Generation before = machine_->generation();
  for (const Link link : {Link{1}, Link{2}}) {
    EXPECT_FALSE(end_.has_value());
    step(Received{link, wire::Finished{before, 4}});
    step(Closed{link});
  }
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(end_->success);
  EXPECT_EQ(machine_->generation(), before);
  for (const Link link : {Link{3}, Link{4}}) EXPECT_NE(last<wire::JobEnded>(link), nullptr);
}

TEST_F(ServersTest, SeeTheEndOfWorkersInTheirGroup) {
  all_train();
  const Generation before = machine_->generation();
  for (Link link = 1; link <= 4; ++link) step(Received{link, wire::Progress{before, 5}});
  for (const Link link : {Link{1}, Link{2}}) step(Received{link, wire::Finished{before, 5}});
  EXPECT_EQ(machine_->generation(), before);
}

// A server begins by itself. A worker that was to make the state for all others may die before.
TEST_F(ServersTest, WorkersThatHaveNothingYetBeginThoughAServerHasBegun) {
  all_come();
  for (Link link = 1; link <= 4; ++link) say(link, kNoVersion, kNoVersion);
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  step(ProvenDead{"0", 1});
  come(11, who("0", 10));
  for (const Link link : {Link{2}, Link{11}}) say(link, kNoVersion, kNoVersion);
  for (const Link link : {Link{3}, Link{4}}) say(link, 0, 0);
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(machine_->head().orders[0].act, wire::Act::kBegin);
  EXPECT_EQ(machine_->head().orders[1].act, wire::Act::kReceive);
  EXPECT_EQ(machine_->head().orders[1].source.holder, 0);
  EXPECT_EQ(machine_->head().orders[2].act, wire::Act::kKeep);
}

}  // namespace
}  // namespace holdfast::controller
