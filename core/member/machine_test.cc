// What a member does that the simulation can not bring about, and what it must never do.
#include "core/member/machine.h"

#include <gtest/gtest.h>

namespace holdfast::member {
namespace {

using wire::Stage;

constexpr auto kFinish = wire::Act::kFinish;

// This rank's part of a formation.
wire::Assignment part(Stage stage, Generation generation, Version version = 0,
                      const wire::Order& order = {}, Rank ended = kNoRank) {
  return {.rank = 0,
          .world_size = 1,
          .run_id = 7,
          .generation = generation,
          .stage = stage,
          .version = version,
          .order = order,
          .ended = ended,
          .cause = {}};
}

class MemberTest : public ::testing::Test {
 protected:
  Actions hear(wire::Message message) { return machine_.step(Received{std::move(message)}); }

  // Accepted, parked at `version` and stopped for `generation`.
  void park(Generation generation, Version version) {
    (void)machine_.step(Connected{});
    (void)hear(part(Stage::kStopping, generation));
    (void)machine_.step(Parked{{version, version}});
  }

  template <class Action>
  static const Action* find(const Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* found = std::get_if<Action>(&action)) return found;
    }
    return nullptr;
  }
  template <class Message>
  static const Message* said(const Actions& actions) {
    for (const auto& action : actions) {
      const auto* send = std::get_if<Send>(&action);
      if (send && std::holds_alternative<Message>(send->message)) {
        return &std::get<Message>(send->message);
      }
    }
    return nullptr;
  }

  Machine machine_{wire::Register{.job = "job", .node_id = "w0", .incarnation = 1}};
};

TEST_F(MemberTest, ReportsOnceItIsParkedAndStopped) {
  (void)machine_.step(Connected{});
  EXPECT_EQ(said<wire::Report>(hear(part(Stage::kStopping, 1))), nullptr);
  const auto actions = machine_.step(Parked{{5, 6}});
  const auto* report = said<wire::Report>(actions);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(*report, (wire::Report{1, 5, 6}));
}

TEST_F(MemberTest, SaysNothingWithoutAConnection) {
  park(1, 5);
  (void)machine_.step(Disconnected{});
  EXPECT_EQ(find<Send>(hear(part(Stage::kStopping, 2))), nullptr);
}

// Two ranks on two hosts. This one has an agent, unless said otherwise.
class MemberOfHostsTest : public MemberTest {
 protected:
  static wire::Assignment with(const AddressBook& book, wire::Assignment part) {
    part.addresses = book.name();
    return part;
  }
  void SetUp() override {
    machine_ = Machine(wire::Register{.job = "job", .node_id = "w0", .attempt = 1});
  }
  static std::shared_ptr<const AddressBook> book_of(const AddressBook& book) {
    return std::make_shared<AddressBook>(book);
  }
  const AddressBook book_{{{0, "a:1", 0}, {1, "b:1", 1}}};
  const AddressBook next_{{{0, "a:1", 0}, {1, "c:1", 1}}};
};

TEST_F(MemberOfHostsTest, StopsAtOnceAndGoesOnceItKnowsWhereTheOthersAre) {
  (void)machine_.step(Connected{"a:1"});
  auto actions = hear(with(book_, part(Stage::kStopping, 1)));
  EXPECT_NE(find<AwaitAddresses>(actions), nullptr);
  EXPECT_EQ(find<RankGiven>(actions), nullptr);
  actions = machine_.step(AddressesFound{book_of(book_)});
  ASSERT_NE(find<RankGiven>(actions), nullptr);
  EXPECT_EQ(find<RankGiven>(actions)->peers->places(), book_.places());
  EXPECT_NE(said<wire::Report>(machine_.step(Parked{{5, 5}})), nullptr);
  // The other one is replaced.
  actions = hear(with(next_, part(Stage::kRunning, 1, 5)));
  EXPECT_NE(find<AwaitAddresses>(actions), nullptr);
  EXPECT_EQ(find<Go>(actions), nullptr);
  EXPECT_TRUE(machine_.step(AddressesFound{book_of(book_)}).empty()) << "these are too old";
  // And once more, before anybody has left the addresses: it reports, and goes nowhere.
  EXPECT_NE(said<wire::Report>(hear(with(book_, part(Stage::kStopping, 2)))), nullptr);
  EXPECT_FALSE(machine_.awaits_addresses());
  actions = hear(with(next_, part(Stage::kRunning, 2, 5)));
  actions = machine_.step(AddressesFound{book_of(next_)});
  ASSERT_NE(find<Go>(actions), nullptr);
  EXPECT_EQ(find<Go>(actions)->peers->places(), next_.places());
  EXPECT_FALSE(machine_.awaits_addresses());
}

TEST_F(MemberOfHostsTest, AsksTheSchedulerWhereItsAgentLeavesNothing) {
  (void)machine_.step(Connected{"a:1"});
  EXPECT_EQ(said<wire::AskAddresses>(hear(with(book_, part(Stage::kStopping, 1)))), nullptr);
  EXPECT_NE(said<wire::AskAddresses>(machine_.step(AddressesOverdue{})), nullptr);
  EXPECT_NE(find<RankGiven>(hear(book_.whole())), nullptr);
  EXPECT_EQ(said<wire::AskAddresses>(machine_.step(AddressesOverdue{})), nullptr);
}

TEST_F(MemberOfHostsTest, AsksAtOnceIfItHasNoAgent) {
  machine_ = Machine(wire::Register{.job = "job", .node_id = "w0"});
  (void)machine_.step(Connected{"a:1"});
  const auto actions = hear(with(book_, part(Stage::kStopping, 1)));
  EXPECT_NE(said<wire::AskAddresses>(actions), nullptr);
  EXPECT_EQ(find<AwaitAddresses>(actions), nullptr);
}

TEST_F(MemberOfHostsTest, WaitsForNothingWithoutAConnection) {
  (void)machine_.step(Connected{"a:1"});
  (void)hear(with(book_, part(Stage::kStopping, 1)));
  (void)machine_.step(Disconnected{});
  EXPECT_FALSE(machine_.awaits_addresses());
  EXPECT_TRUE(machine_.step(AddressesFound{book_of(book_)}).empty());
}

// Others have come since it was told of its place.
TEST_F(MemberOfHostsTest, IsGivenItsRankByAnyBookThatHasItsPlace) {
  (void)machine_.step(Connected{"a:1"});
  (void)hear(with(book_, part(Stage::kStopping, 1)));
  const AddressBook without({{0, "z:1", 0}, {1, "c:1", 1}});
  EXPECT_TRUE(machine_.step(AddressesFound{book_of(without)}).empty());
  const auto actions = machine_.step(AddressesFound{book_of(next_)});
  ASSERT_NE(find<RankGiven>(actions), nullptr);
  EXPECT_EQ(find<RankGiven>(actions)->peers->places(), next_.places());
}

TEST_F(MemberOfHostsTest, GoesWithTheNewestBookIfItsOwnIsGone) {
  park(1, 5);
  (void)hear(with(book_, part(Stage::kRunning, 1, 5)));
  (void)machine_.step(AddressesOverdue{});
  EXPECT_EQ(find<Go>(hear(next_.whole())), nullptr);
  const auto actions = hear(with(next_, part(Stage::kRunning, 1, 5)));
  ASSERT_NE(find<Go>(actions), nullptr);
  EXPECT_EQ(find<Go>(actions)->peers->places(), next_.places());
}

TEST_F(MemberOfHostsTest, NeedsNoneWhereAllShareOneMemory) {
  park(1, 5);
  (void)hear(with(book_, part(Stage::kStopping, 2, 5)));
  (void)machine_.step(AddressesFound{book_of(book_)});
  const auto actions = hear(part(Stage::kRunning, 2, 5));
  ASSERT_NE(find<Go>(actions), nullptr);
  EXPECT_TRUE(find<Go>(actions)->peers->places().empty());
}

TEST_F(MemberTest, HearsWhoWillNeverJoin) {
  park(1, 5);
  const auto actions = hear(part(Stage::kRunning, 1, 5, {}, 2));
  const auto* go = find<Go>(actions);
  ASSERT_NE(go, nullptr);
  EXPECT_EQ(go->ended, 2);
}

TEST_F(MemberTest, IgnoresAResumeOfAGenerationThatWasGivenUp) {
  park(1, 5);
  (void)hear(part(Stage::kStopping, 2));
  EXPECT_EQ(find<Go>(hear(part(Stage::kRunning, 1, 5))), nullptr);
  EXPECT_NE(find<Go>(hear(part(Stage::kRunning, 2, 5))), nullptr);
}

TEST_F(MemberTest, IgnoresARepairOfAGenerationThatWasGivenUp) {
  park(1, 5);
  (void)hear(part(Stage::kStopping, 2));
  EXPECT_EQ(find<Repair>(hear(part(Stage::kRepairing, 1, 6, {kFinish, {}}))), nullptr);
}

TEST_F(MemberTest, RepairsOnceAndAnswersEveryTime) {
  park(1, 5);
  const auto repair = part(Stage::kRepairing, 1, 6, {kFinish, {}});
  EXPECT_NE(find<Repair>(hear(repair)), nullptr);
  EXPECT_NE(said<wire::Repaired>(machine_.step(RepairDone{{6, 6}})), nullptr);
  const auto again = hear(repair);
  EXPECT_EQ(find<Repair>(again), nullptr);
  EXPECT_NE(said<wire::Repaired>(again), nullptr);
}

TEST_F(MemberTest, ReportsWhatItHoldsWhenItWasStoppedWhileRepairing) {
  park(1, kNoVersion);
  (void)hear(part(Stage::kRepairing, 1, 5,
                  {wire::Act::kReceive, {.holder = 1, .host = {}, .endpoint = {}}}));
  EXPECT_EQ(said<wire::Report>(hear(part(Stage::kStopping, 2))), nullptr);
  const auto actions = machine_.step(RepairDone{{5, 5}});
  EXPECT_EQ(said<wire::Repaired>(actions), nullptr);
  ASSERT_NE(said<wire::Report>(actions), nullptr);
  EXPECT_EQ(*said<wire::Report>(actions), (wire::Report{2, 5, 5}));
}

TEST_F(MemberTest, WouldRatherFailThanTrainFromAnotherVersion) {
  park(1, 5);
  const auto actions = hear(part(Stage::kRunning, 1, 6));
  EXPECT_EQ(find<Go>(actions), nullptr);
  EXPECT_NE(said<wire::Failed>(actions), nullptr);
}

TEST_F(MemberTest, AStopInTrainingEndsTheCollectivesOfThatGeneration) {
  park(1, 5);
  (void)hear(part(Stage::kRunning, 1, 5));
  const auto actions = hear(part(Stage::kStopping, 2));
  ASSERT_NE(find<Abort>(actions), nullptr);
  EXPECT_EQ(find<Abort>(actions)->generation, 1U);
}

TEST_F(MemberTest, AStopOfTheGenerationItTrainsInIsOld) {
  park(1, 5);
  (void)hear(part(Stage::kRunning, 1, 5));
  EXPECT_TRUE(hear(part(Stage::kStopping, 1)).empty());
}

TEST_F(MemberTest, SaysItsEndAgainAfterAReconnection) {
  park(1, 5);
  (void)hear(part(Stage::kRunning, 1, 5));
  (void)machine_.step(TrainingEnded{9});
  (void)machine_.step(Disconnected{});
  (void)machine_.step(Connected{});
  const auto actions = hear(part(Stage::kStopping, 1));
  ASSERT_NE(said<wire::Finished>(actions), nullptr);
  EXPECT_EQ(said<wire::Finished>(actions)->version, 9U);
  EXPECT_NE(find<Released>(hear(wire::Farewell{})), nullptr);
}

TEST_F(MemberTest, AFarewellIsNothingToWhoStillTrains) {
  park(1, 5);
  EXPECT_TRUE(hear(wire::Farewell{}).empty());
}

TEST_F(MemberTest, WaitsAsLongAsItIsNew) {
  (void)machine_.step(Connected{});
  const auto actions = hear(wire::Waiting{{.kind = wire::Reason::Kind::kAssembling}});
  EXPECT_NE(find<Say>(actions), nullptr);
  EXPECT_EQ(find<GiveUp>(actions), nullptr);
}

// It is told so again after each new connection.
TEST_F(MemberTest, SaysOnceThatAnotherProcessHasItsPlace) {
  const auto leased = [](std::int64_t pid, std::int64_t seconds) {
    return wire::Waiting{
        {.kind = wire::Reason::Kind::kLeased, .rank = 1, .pid = pid, .count = seconds}};
  };
  (void)machine_.step(Connected{});
  EXPECT_NE(find<Say>(hear(leased(7, 30))), nullptr);
  (void)machine_.step(Disconnected{});
  (void)machine_.step(Connected{});
  EXPECT_EQ(find<Say>(hear(leased(7, 29))), nullptr);
  EXPECT_NE(find<Say>(hear(leased(8, 29))), nullptr);
}

TEST_F(MemberTest, HasStoodByWhereAnotherHadItsPlaceUntilTheJobHadEndedWell) {
  using Kind = wire::Reason::Kind;
  for (const auto kind : {Kind::kLeased, Kind::kRankHasEnded, Kind::kAssembling}) {
    for (const bool success : {true, false}) {
      Machine other{wire::Register{.job = "job", .node_id = "w0", .incarnation = 2}};
      (void)other.step(Connected{});
      (void)other.step(Received{wire::Waiting{{.kind = kind, .rank = 1}}});
      const auto actions = other.step(Received{wire::JobEnded{success, {}}});
      ASSERT_NE(find<GiveUp>(actions), nullptr);
      EXPECT_EQ(find<GiveUp>(actions)->stood_by, success && kind != Kind::kAssembling);
    }
  }
  park(1, 5);  // This one had a place.
  EXPECT_FALSE(find<GiveUp>(hear(wire::JobEnded{true, {}}))->stood_by);
}

TEST_F(MemberTest, EndsWhenItsPlaceWasGivenAway) {
  park(1, 5);
  (void)machine_.step(Disconnected{});
  (void)machine_.step(Connected{});
  const auto actions = hear(wire::Waiting{{.kind = wire::Reason::Kind::kLeased}});
  ASSERT_NE(find<GiveUp>(actions), nullptr);
  EXPECT_FALSE(find<GiveUp>(actions)->success);
}

TEST_F(MemberTest, GivesUpOnceOnly) {
  park(1, 5);
  EXPECT_NE(find<GiveUp>(hear(wire::JobEnded{true, {}})), nullptr);
  EXPECT_TRUE(hear(wire::JobEnded{true, {}}).empty());
}

}  // namespace
}  // namespace holdfast::member
