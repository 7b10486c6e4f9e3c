// What a member does that the simulation can not bring about, and what it must never do.
#include "core/member/machine.h"

#include <gtest/gtest.h>

namespace holdfast::member {
namespace {

using wire::Stage;

// An assignment for this rank.
wire::Assignment part(Stage stage, Generation generation, Version version = 0) {
  return {.rank = 0,
          .world_size = 1,
          .run_id = 7,
          .generation = generation,
          .stage = stage,
          .version = version,
          .order = {},
          .cause = {}};
}

class MemberTest : public ::testing::Test {
 protected:
  Actions hear(wire::Message message) { return machine_.step(Received{std::move(message)}); }

  // Gives the member its rank.
  void place() {
    (void)machine_.step(Connected{});
    (void)hear(part(Stage::kStopping, 1));
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

TEST_F(MemberTest, PassesOnWhatItIsToldAsLongAsThereIsAConnection) {
  place();
  EXPECT_NE(said<wire::Report>(machine_.step(Told{wire::Report{1, 5, 5}})), nullptr);
  (void)machine_.step(Disconnected{});
  EXPECT_TRUE(machine_.step(Told{wire::Report{1, 5, 5}}).empty());
}

TEST_F(MemberTest, SaysWhichAssignmentIsTheFirstOnAConnection) {
  place();
  EXPECT_FALSE(find<Assigned>(hear(part(Stage::kStopping, 2)))->is_first);
  (void)machine_.step(Disconnected{});
  (void)machine_.step(Connected{});
  EXPECT_TRUE(find<Assigned>(hear(part(Stage::kStopping, 2)))->is_first);
  EXPECT_FALSE(find<Assigned>(hear(part(Stage::kStopping, 2)))->is_first);
}

// Two ranks on two hosts. This one has an agent unless a test says otherwise.
class MemberOfHostsTest : public MemberTest {
 protected:
  static wire::Assignment with(const AddressBook& book, wire::Assignment part) {
    part.addresses = book.name();
    return part;
  }
  void SetUp() override {
    machine_ = Machine(wire::Register{.job = "job", .node_id = "w0", .attempt = 1});
  }
  // The address book in the Assigned among these actions; null: there is none.
  static const AddressBook* peers(const Actions& actions) {
    const auto* assigned = find<Assigned>(actions);
    return assigned == nullptr ? nullptr : assigned->peers.get();
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
  EXPECT_NE(find<Assigned>(actions), nullptr);
  EXPECT_NE(find<AwaitAddresses>(actions), nullptr);
  EXPECT_EQ(find<RankGiven>(actions), nullptr);
  actions = machine_.step(AddressesFound{book_of(book_)});
  ASSERT_NE(find<RankGiven>(actions), nullptr);
  EXPECT_EQ(find<RankGiven>(actions)->peers->places(), book_.places());
  // The other rank is replaced.
  actions = hear(with(next_, part(Stage::kRunning, 1, 5)));
  EXPECT_NE(find<AwaitAddresses>(actions), nullptr);
  EXPECT_EQ(peers(actions), nullptr);
  EXPECT_TRUE(machine_.step(AddressesFound{book_of(book_)}).empty()) << "these are too old";
  // The other rank is replaced once more before the agent has left the addresses: this rank stops,
  // and does not train.
  EXPECT_NE(find<Assigned>(hear(with(book_, part(Stage::kStopping, 2)))), nullptr);
  EXPECT_FALSE(machine_.awaits_addresses());
  actions = hear(with(next_, part(Stage::kRunning, 2, 5)));
  EXPECT_EQ(peers(actions), nullptr);
  actions = machine_.step(AddressesFound{book_of(next_)});
  ASSERT_NE(peers(actions), nullptr);
  EXPECT_EQ(peers(actions)->places(), next_.places());
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

// Other ranks have come since this one was told its place, so the book is another one.
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
  place();
  (void)hear(with(book_, part(Stage::kRunning, 1, 5)));
  (void)machine_.step(AddressesOverdue{});
  EXPECT_EQ(find<Assigned>(hear(next_.whole())), nullptr);
  const auto actions = hear(with(next_, part(Stage::kRunning, 1, 5)));
  ASSERT_NE(peers(actions), nullptr);
  EXPECT_EQ(peers(actions)->places(), next_.places());
}

TEST_F(MemberOfHostsTest, NeedsNoneWhereAllShareOneMemory) {
  place();
  (void)hear(with(book_, part(Stage::kStopping, 2, 5)));
  (void)machine_.step(AddressesFound{book_of(book_)});
  const auto actions = hear(part(Stage::kRunning, 2, 5));
  ASSERT_NE(peers(actions), nullptr);
  EXPECT_TRUE(peers(actions)->places().empty());
}

TEST_F(MemberTest, WaitsAsLongAsItIsNew) {
  (void)machine_.step(Connected{});
  const auto actions = hear(wire::Waiting{{.kind = wire::Reason::Kind::kAssembling}});
  EXPECT_NE(find<Say>(actions), nullptr);
  EXPECT_EQ(find<GiveUp>(actions), nullptr);
}

// The scheduler tells it again after each reconnection.
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
  place();  // A process that has had a place did not stand by.
  EXPECT_FALSE(find<GiveUp>(hear(wire::JobEnded{true, {}}))->stood_by);
}

TEST_F(MemberTest, EndsWhenItsPlaceWasGivenAway) {
  place();
  (void)machine_.step(Disconnected{});
  (void)machine_.step(Connected{});
  const auto actions = hear(wire::Waiting{{.kind = wire::Reason::Kind::kLeased}});
  ASSERT_NE(find<GiveUp>(actions), nullptr);
  EXPECT_FALSE(find<GiveUp>(actions)->success);
}

TEST_F(MemberTest, GivesUpOnceOnly) {
  place();
  EXPECT_NE(find<GiveUp>(hear(wire::JobEnded{true, {}})), nullptr);
  EXPECT_TRUE(hear(wire::JobEnded{true, {}}).empty());
}

}  // namespace
}  // namespace holdfast::member
