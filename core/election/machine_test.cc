// The rules of the election (P30, P55), one by one. The simulation tests them together
// (sim/election_world.h).
#include "core/election/machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace holdfast::election {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRun = 7;
constexpr std::uint64_t kFormer = 5;

class ElectionTest : public ::testing::Test {
 protected:
  ElectionTest() {
    options_.self = {
        .run = kRun, .host_name = "host1", .agent = "agent1", .attempt = 1, .token_mark = "token"};
    options_.new_run = 99;
    options_.lease = 2s;
    options_.patience = 5s;
  }

  static Key key_of(std::uint64_t run, std::int64_t created = 1, const std::string& host = "here") {
    return {{.run = run,
             .host = host,
             .host_name = "host0",
             .agent = "agent0",
             .attempt = 1,
             .token_mark = "token"},
            created,
            created};
  }

  // The scheduler looks for the time `during`, at least every half second, and sees this each time.
  Actions see(const std::optional<Key>& key, std::optional<std::uint64_t> journal,
              Duration during = 150ms) {
    Actions all;
    do {
      const Duration part = std::min<Duration>(during, 500ms);
      during -= part;
      look(part);
      for (auto& action : step(Looked{now_, key, journal.has_value(), journal})) {
        all.push_back(std::move(action));
      }
    } while (during > 0s && waits());
    return all;
  }
  Actions fail(const Error& why, Duration later = 150ms) {
    look(later);
    return step(Failed{why});
  }
  void look(Duration later) {
    if (!machine_) machine_.emplace(options_, now_);
    now_ += later;
    EXPECT_LE(machine_->deadline(), now_);
    EXPECT_TRUE(find<Look>(step(TimePassed{})));
  }
  Actions step(const Event& event) { return machine_->step(now_, event); }
  // The scheduler stands by, since the scheduler of that run has answered it.
  void stand_by(std::uint64_t run) {
    const auto actions = see(key_of(run), run);
    ASSERT_TRUE(find<Ask>(actions));
    ASSERT_TRUE(find<StandBy>(step(Asked{1, true})));
  }
  bool waits() const { return machine_->state() == State::kWaiting; }

  template <class Action>
  static std::optional<Action> find(const Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* found = std::get_if<Action>(&action)) return *found;
    }
    return std::nullopt;
  }
  static std::uint64_t tried(const Actions& actions) {  // The run in Try; 0: it does not try.
    const auto found = find<Try>(actions);
    return found ? found->leader.run : 0;
  }

  Options options_;
  std::optional<Machine> machine_;
  Instant now_ = 1000s;
};

TEST_F(ElectionTest, ARunsFirstBeginsWhereNothingIs) {
  EXPECT_EQ(tried(see({}, {})), kRun);
  const auto lead = find<Lead>(step(Tried{4, key_of(kRun, 9, ""), {}}));
  EXPECT_FALSE(lead);  // The key has another lease.
  EXPECT_TRUE(waits());
  EXPECT_EQ(tried(see({}, {})), kRun);
  const auto led = find<Lead>(step(Tried{9, key_of(kRun, 9, ""), {}}));
  ASSERT_TRUE(led);
  EXPECT_EQ(led->key.created, 9);
  EXPECT_FALSE(led->takes_over);
  EXPECT_FALSE(led->without);
  EXPECT_FALSE(machine_->deadline());
}

TEST_F(ElectionTest, AKeyThatIsThereWasPutWhateverWasAnswered) {
  (void)see({}, {});
  EXPECT_TRUE(find<Lead>(step(Tried{9, key_of(kRun, 9), {Blame::kWorld, "no answer"}})));
}

TEST_F(ElectionTest, WhereEtcdRefusesItsKeyItGivesUp) {
  (void)see({}, {});
  EXPECT_TRUE(find<GiveUp>(step(Tried{9, std::nullopt, {Blame::kUser, "no permission"}})));
}

TEST_F(ElectionTest, OneThatStandsByBeginsNoRun) {
  options_.standby = true;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(tried(see({}, {})));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(tried(see({}, kFormer)));
}

TEST_F(ElectionTest, OneThatStandsByGoesOnWithARunThatHasAnswered) {
  options_.standby = true;
  stand_by(kFormer);
  EXPECT_EQ(tried(see({}, kFormer, 200ms)), kFormer);
  const auto lead = find<Lead>(step(Tried{9, key_of(kFormer, 9), {}}));
  ASSERT_TRUE(lead);
  EXPECT_TRUE(lead->takes_over);
  EXPECT_EQ(lead->without, 200ms);
  EXPECT_EQ(lead->predecessor, "host0");
}

TEST_F(ElectionTest, OfASchedulerWithAnotherKeyTheAnswerProvesNothing) {
  options_.standby = true;
  (void)see(key_of(kFormer, 1), kFormer);
  (void)see(key_of(kRun + 1, 2), kRun + 1);
  EXPECT_FALSE(find<StandBy>(step(Asked{1, true})));
  EXPECT_TRUE(find<Ask>(see(key_of(kRun + 1, 2), kRun + 1)));  // It asks the new scheduler, too.
}

// The key of a dead scheduler stays for the time of the lease, and a second at most.
TEST_F(ElectionTest, AKeyThatIsThereForLongerHasAScheduler) {
  options_.standby = true;
  (void)see(key_of(kFormer, 1, ""), kFormer);
  EXPECT_FALSE(find<StandBy>(see(key_of(kFormer, 1, ""), kFormer, 3s)));
  EXPECT_FALSE(find<StandBy>(see(key_of(kFormer, 2, ""), kFormer)));  // Another key.
  EXPECT_FALSE(find<StandBy>(see(key_of(kFormer, 2, ""), kFormer, 3s)));
  EXPECT_TRUE(find<StandBy>(see(key_of(kFormer, 2, ""), kFormer, 150ms)));
  EXPECT_EQ(tried(see({}, kFormer)), kFormer);
}

// etcd's next leader restarts the time of all leases, also of those of dead schedulers.
TEST_F(ElectionTest, AKeyThatIsThereAfterEtcdWasAwayMayBeADeadOnes) {
  options_.standby = true;
  (void)see(key_of(kFormer, 1, ""), kFormer);
  (void)fail({Blame::kWorld, "no answer"}, 2s);
  EXPECT_FALSE(find<StandBy>(see(key_of(kFormer, 1, ""), kFormer, 1500ms)));
  EXPECT_TRUE(find<StandBy>(see(key_of(kFormer, 1, ""), kFormer, 3150ms)));
}

TEST_F(ElectionTest, WithTheRemainsOfAJobNobodyGoesOn) {
  options_.standby = true;
  (void)see(key_of(kFormer), kFormer);
  (void)step(Asked{1, false});
  EXPECT_FALSE(tried(see({}, kFormer)));
}

TEST_F(ElectionTest, ARunIsBegunInPlaceOfAnotherOnlyOnceNobodyTakesThat) {
  EXPECT_FALSE(tried(see({}, kFormer)));
  EXPECT_FALSE(tried(see({}, kFormer, 3s)));
  EXPECT_EQ(tried(see({}, kFormer)), kRun);
}

// While etcd is away, no standby can take the key.
TEST_F(ElectionTest, NoTimeCountsInWhichEtcdWasAway) {
  EXPECT_FALSE(tried(see({}, kFormer)));
  (void)fail({Blame::kWorld, "no answer"}, 2900ms);
  EXPECT_FALSE(tried(see({}, kFormer)));
  EXPECT_FALSE(tried(see({}, kFormer, 3s)));
  EXPECT_EQ(tried(see({}, kFormer)), kRun);
}

TEST_F(ElectionTest, ASuccessorGoesOnWithItsOwnRunAtOnce) {
  options_.self.attempt = 2;
  EXPECT_EQ(tried(see({}, kRun)), kRun);
  EXPECT_TRUE(find<Lead>(step(Tried{9, key_of(kRun, 9), {}}))->takes_over);
}

TEST_F(ElectionTest, ASuccessorLeavesTheJournalOfOthersToThem) {
  options_.self.attempt = 2;
  (void)see(key_of(kRun, 1, ""), {});
  (void)see(key_of(kFormer, 2), kFormer);
  EXPECT_FALSE(tried(see({}, kFormer)));
  EXPECT_FALSE(tried(see({}, kFormer, 3s)));
  EXPECT_EQ(tried(see({}, kFormer)), kRun);
}

TEST_F(ElectionTest, ByHandItGoesOnWithTheRunOfTheJournalIfItsUserSaysSo) {
  options_.self = {.host_name = "host1", .token_mark = "token"};
  options_.by_hand_again = true;
  EXPECT_EQ(tried(see({}, kFormer)), kFormer);
}

TEST_F(ElectionTest, ByHandItBeginsARunThatItHasDrawn) {
  options_.self = {.host_name = "host1", .token_mark = "token"};
  EXPECT_EQ(tried(see({}, {})), options_.new_run);
}

TEST_F(ElectionTest, AHigherAttemptOfAnAgentTakesTheKeyOfTheFormer) {
  options_.self = key_of(kRun).leader;
  options_.self.attempt = 2;
  options_.standby = true;
  const auto remove = find<Remove>(see(key_of(kFormer, 4), kFormer));
  ASSERT_TRUE(remove);
  EXPECT_EQ(remove->created, 4);
  (void)step(Removed{false});
  EXPECT_TRUE(waits());
  (void)see(key_of(kFormer, 4), kFormer);
  EXPECT_EQ(tried(step(Removed{true})), kFormer);
}

TEST_F(ElectionTest, NobodyElseRemovesAKey) {
  options_.self = key_of(kRun).leader;
  options_.self.attempt = 2;
  Key key = key_of(kFormer, 4);
  for (const auto change : {0, 1, 2}) {
    Key other = key;
    if (change == 0) other.leader.agent = "another";
    if (change == 1) other.leader.host_name = "another";
    if (change == 2) other.leader.attempt = 2;
    EXPECT_FALSE(find<Remove>(see(other, kFormer))) << change;
  }
  machine_.reset();
  options_.self.agent = key.leader.agent = "";  // Both were started by hand.
  EXPECT_FALSE(find<Remove>(see(key, kFormer)));
}

TEST_F(ElectionTest, WhoStandsByEndsWithTheJob) {
  options_.standby = true;
  EXPECT_FALSE(find<EndWithJob>(see({}, {})));  // The job has not begun yet.
  EXPECT_FALSE(find<EndWithJob>(see(key_of(kFormer), kFormer)));
  EXPECT_FALSE(find<EndWithJob>(see(key_of(kFormer), {})));
  EXPECT_TRUE(find<EndWithJob>(see({}, {})));
}

TEST_F(ElectionTest, ARunsFirstEndsWithAJobThatItHasStoodByFor) {
  stand_by(kFormer);
  EXPECT_TRUE(find<EndWithJob>(see({}, {})));
}

TEST_F(ElectionTest, AnotherJobOfItsNameIsRefusedOnceItIsKnownToLive) {
  Key key = key_of(kFormer);
  key.leader.token_mark = "another";
  const auto first = see(key, kFormer);
  EXPECT_FALSE(find<Refuse>(first));
  EXPECT_FALSE(find<Found>(first));
  const auto later = see(key, kFormer, 3150ms);
  EXPECT_EQ(find<Refuse>(later)->host, "host0");
  EXPECT_FALSE(find<StandBy>(later));
}

TEST_F(ElectionTest, TheRemainsOfAnotherJobRefuseNobodyThatHasARun) {
  stand_by(kFormer);
  Key key = key_of(kFormer + 1, 2, "");
  key.leader.token_mark = "another";
  EXPECT_FALSE(find<Refuse>(see(key, kFormer)));
  EXPECT_EQ(tried(see({}, kFormer)), kFormer);
}

TEST_F(ElectionTest, TheEndOfAnotherJobIsNotThatOfItsOwn) {
  options_.standby = true;
  Key key = key_of(kFormer);
  key.leader.token_mark = "another";
  (void)see(key, kFormer);
  EXPECT_FALSE(find<EndWithJob>(see({}, {})));
}

TEST_F(ElectionTest, WhereTheSchedulerIsIsSaidOnceAndWhenItChanges) {
  options_.standby = true;
  EXPECT_FALSE(find<Found>(see(key_of(kFormer, 1, ""), kFormer)));
  // StandBy will tell the user.
  EXPECT_FALSE(find<Found>(see(key_of(kFormer, 1), kFormer))->is_news);
  (void)step(Asked{1, true});
  EXPECT_FALSE(find<Found>(see(key_of(kFormer, 1), kFormer)));
  EXPECT_TRUE(find<Found>(see(key_of(kFormer, 2, "there"), kFormer))->is_news);
}

TEST_F(ElectionTest, NobodyWaitsForEverForEtcd) {
  options_.standby = true;
  const Error why{Blame::kWorld, "no answer"};
  (void)see({}, {});
  EXPECT_TRUE(find<SayWhy>(fail(why, 1s)));
  EXPECT_TRUE(fail(why, 4s).empty());  // The same reason is said once.
  EXPECT_TRUE(find<GiveUp>(fail(why)));
}

TEST_F(ElectionTest, NobodyTriesForEverToPutItsKey) {
  const Error full{Blame::kWorld, "its disk is full"};
  int said = 0;
  const Instant began = now_;
  while (true) {
    ASSERT_EQ(tried(see({}, {}, 500ms)), kRun);
    const auto actions = step(Tried{9, std::nullopt, full});
    if (find<SayWhy>(actions)) ++said;
    if (find<GiveUp>(actions)) break;
    ASSERT_LT(now_, began + 20s);
  }
  EXPECT_EQ(said, 1);
  EXPECT_GT(now_, began + 9s);
}

TEST_F(ElectionTest, ThatAnotherOneLeadsEndsItsOwnFailing) {
  (void)see({}, {});
  (void)step(Tried{9, std::nullopt, {Blame::kWorld, "its disk is full"}});
  (void)see(key_of(kFormer), kFormer, 20s);
  EXPECT_TRUE(find<SayWhy>(fail({Blame::kWorld, "no answer"})));
  EXPECT_TRUE(waits());
}

TEST_F(ElectionTest, ARunsFirstWaitsForTenSeconds) {
  options_.patience = 60s;
  const Error why{Blame::kWorld, "no answer"};
  EXPECT_FALSE(find<GiveUp>(fail(why, 10s)));
  EXPECT_TRUE(find<GiveUp>(fail(why)));
}

TEST_F(ElectionTest, WhatItsUserHasToPutRightIsNotWaitedFor) {
  options_.standby = true;
  EXPECT_TRUE(find<GiveUp>(fail({Blame::kUser, "no certificate"})));
}

}  // namespace
}  // namespace holdfast::election
