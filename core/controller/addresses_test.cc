// What ranks and their agents hear of where the ranks are.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using wire::Stage;

TEST_F(ControllerTest, RanksOfSeveralHostsHearWhereTheOthersAre) {
  come_from_two_hosts();
  report_all({1, 2, 3});
  const std::vector<PeerPlace> places = {
      {0, "host-1:1", 0}, {1, "host-2:1", 1}, {0, "host-1:1", 0}};
  for (Link link = 1; link <= 3; ++link) EXPECT_EQ(places_of(link), places);
}

TEST_F(ControllerTest, RanksHearWhatFailsTogether) {
  const auto in = [](wire::Register m, const std::string& domain) {
    m.domain = domain;
    return m;
  };
  come(1, in(who("0", 1, 0, "host-1"), "rack-1"));
  come(2, in(who("1", 2, 0, "host-2"), "rack-1"));
  come(3, in(who("2", 3, 0, "host-3"), "rack-2"));
  report_all({1, 2, 3});
  EXPECT_EQ(places_of(1),
            (std::vector<PeerPlace>{{0, "host-1:1", 0}, {1, "host-2:1", 0}, {2, "host-3:1", 1}}));
}

// Each host counts as a domain, since a copy on another host is better than none.
TEST_F(ControllerTest, HostsOfOnlyOneDomainFailAlone) {
  for (Link link = 1; link <= 3; ++link) {
    wire::Register m = who(cat(link - 1), link, 0, cat("host-", link));
    m.domain = "rack-1";
    come(link, m);
  }
  report_all({1, 2, 3});
  ASSERT_EQ(places_of(1).size(), 3U);
  EXPECT_EQ(places_of(1)[2].domain, 2U);
}

TEST_F(ControllerTest, RanksThatShareOneMemoryNeedNotHearIt) {
  all_train();
  EXPECT_EQ(at(Stage::kRunning, 1)->addresses, 0U);
}

// The address book that the reader of all these messages has.
AddressBook heard_on(const std::vector<wire::Message>& said) {
  AddressBook book;
  for (const auto& message : said) {
    const auto* addresses = std::get_if<wire::Addresses>(&message);
    if (addresses == nullptr) continue;
    const auto next = book.after(*addresses);
    EXPECT_TRUE(next);
    if (next) book = *next;
  }
  return book;
}

TEST_F(HostsTest, EachAgentHearsWhereAllAreOnceAndThenWhatHasChanged) {
  const auto count = [&](Link link) {
    return std::count_if(said_[link].begin(), said_[link].end(), [](const auto& message) {
      return std::holds_alternative<wire::Addresses>(message);
    });
  };
  for (const Link link : std::initializer_list<Link>{90, 91}) {
    EXPECT_EQ(count(link), 1);
    EXPECT_EQ(heard_on(said_[link]).places(),
              (std::vector<PeerPlace>{{0, "host-1:1", 0}, {0, "host-1:1", 0}, {1, "host-2:1", 1}}));
  }
  EXPECT_EQ(last<wire::Addresses>(1), nullptr) << "a rank has it from its agent";
  // Another process gets the place of rank 1, and listens at another endpoint.
  tell(90, "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 22, 2, true}});
  auto successor = who("1", 22, 2, "host-1");
  successor.endpoint = "host-1:2";
  come(4, successor);
  for (const Link link : std::initializer_list<Link>{90, 91}) {
    ASSERT_EQ(count(link), 2);
    const auto* changes = last<wire::Addresses>(link);
    EXPECT_EQ(changes->ranks, std::vector<std::uint32_t>{1});
    EXPECT_EQ(heard_on(said_[link]).places()[1].endpoint, "host-1:2");
    EXPECT_EQ(heard_on(said_[link]).name(), last<wire::Assignment>(4)->addresses);
  }
}

TEST_F(HostsTest, AnAgentThatComesOrAsksHearsWhereAllAre) {
  const AddressBook book = heard_on(said_[90]);
  step(Received{1, wire::AskAddresses{}});  // A rank that asks also gets its assignment anew.
  EXPECT_EQ(said_[1][said_[1].size() - 2], wire::Message(book.whole()));
  EXPECT_EQ(last<wire::Assignment>(1), &std::get<wire::Assignment>(said_[1].back()));
  step(Received{91, wire::AskAddresses{}});
  EXPECT_EQ(*last<wire::Addresses>(91), book.whole());
  step(Closed{91});
  tell(92, "agent-2", "host-2", {{"2", 3, 1, true}});
  ASSERT_NE(last<wire::Addresses>(92), nullptr);
  EXPECT_EQ(*last<wire::Addresses>(92), book.whole());
  tell(92, "agent-2", "host-2", {{"2", 3, 1, true}});  // The same agent speaks again.
  EXPECT_EQ(said_[92].size(), 1U);
}

TEST_F(ControllerTest, AStartedAgainSchedulerStillKnowsWhereAllAre) {
  come_from_two_hosts();
  report_all({1, 2, 3});
  const auto before = at(Stage::kRunning, 1)->addresses;
  EXPECT_NE(before, 0U);
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  come(11, who("0", 1, 0, "host-1"));
  ASSERT_NE(at(Stage::kRunning, 11), nullptr);
  EXPECT_EQ(at(Stage::kRunning, 11)->addresses, before);
}

// All ranks are on one host by now: there is no book, and nothing to wait for.
TEST_F(ControllerTest, WhoAsksForABookThatNobodyNeedsAnyMoreHearsItsPartAnew) {
  come_from_two_hosts();
  report_all({1, 2, 3});
  step(ProvenDead{"1", 2});
  EXPECT_NE(last<wire::Assignment>(1)->addresses, 0U);
  come(4, who("1", 4, 0, "host-1"));
  step(Received{1, wire::AskAddresses{}});
  EXPECT_EQ(last<wire::Addresses>(1), nullptr);
  EXPECT_EQ(last<wire::Assignment>(1)->addresses, 0U);
}

TEST_F(HostsTest, OnlyAgentsAndRanksHearWhereAllAre) {
  step(Received{70, wire::AskAddresses{}});
  EXPECT_TRUE(said_[70].empty());
}

// P36 holds for this question as for all: answers that wait for the record are counted.
TEST_F(ControllerTest, WhoAsksForTheBookWithoutEndIsHeardNoMore) {
  come_from_two_hosts();
  report_all({1, 2, 3});
  (void)machine_->step(now_, Received{2, wire::Put{1, "key", "value"}});  // Not stored yet.
  const auto ask = [&] { (void)machine_->step(now_, Received{1, wire::AskAddresses{}}); };
  const auto closes = [](const Actions& actions) {
    return std::any_of(actions.begin(), actions.end(), [](const Action& action) {
      const auto* close = std::get_if<Close>(&action);
      return close != nullptr && close->link == 1;
    });
  };
  for (std::size_t i = 0; i < kMaxUnanswered; ++i) ask();
  EXPECT_FALSE(machine_->peers().at(1).dismissed);
  ask();
  EXPECT_TRUE(machine_->peers().at(1).dismissed);
  EXPECT_TRUE(closes(machine_->step(now_, Stored{})));
}

TEST_F(HostsTest, AnAgentThatTakesAnotherNameLeavesNothingOfTheFormer) {
  tell(92, "agent-x", "host-3", {});
  tell(92, "agent-y", "host-3", {});
  step(Closed{92});
  tell(93, "agent-x", "host-3", {});
  EXPECT_FALSE(closed_.contains(93));
  EXPECT_FALSE(closed_.contains(92)) << "it is gone";
}

// The agent's first table would be answered by a book.
TEST_F(HostsTest, AnAgentThatWaitsForTooManyAnswersIsHeardNoMore) {
  step(Connected{97, wire::PeerKind::kAgent});
  for (std::uint64_t id = 1; id <= kMaxUnanswered; ++id) {
    step(Received{97, wire::Get{.id = id, .keys = {"k"}}});
  }
  EXPECT_FALSE(closed_.contains(97));
  tell(97, "agent-7", "host-7", {{"2", 9, 1, true}});
  EXPECT_TRUE(closed_.contains(97));
}

}  // namespace
}  // namespace holdfast::controller
