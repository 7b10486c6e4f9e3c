// PrivateCopies over pairs of sockets: threads are the ranks.
#include "runtime/worker/private_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <string>
#include <thread>

#include "collective/span_job.h"
#include "core/planner/holders.h"
#include "os/testing.h"

namespace holdfast::runtime {
namespace {

using collective::SpanJob;

// A store that has only a private part: all its bytes are mark(rank, v) in version v.
class TestStore final : public StateStore {
 public:
  TestStore(Rank rank, std::uint64_t bytes, const std::string& folder)
      : rank_(rank), folder_(folder) {
    for (auto& place : places_) place.resize(bytes);
  }
  static std::byte mark(Rank rank, Version v) {
    return static_cast<std::byte>(1 + 31 * static_cast<std::uint64_t>(rank) + v);
  }
  void set(Version version, Version staged) {
    version_ = version;
    staged_ = staged;
    for (const Version v : {version, staged}) {
      std::fill(places_[v % 2].begin(), places_[v % 2].end(), mark(rank_, v));
    }
  }
  [[nodiscard]] Losses look_for_losses(bool) override { return {}; }
  [[nodiscard]] Holding holding() const override {
    Holding holding{version_, staged_, true, {}};
    for (const auto& [ward, copy] : held_) {
      if (!copy.fresh()) holding.held.push_back({ward, copy.version(), copy.staged()});
    }
    return holding;
  }
  std::span<std::byte> place(Version v) { return places_[v % 2]; }
  [[nodiscard]] bool has_remains() const override { return false; }
  void clear() override {}
  [[nodiscard]] std::uint64_t own_bytes() const override { return places_[0].size(); }
  std::vector<OwnPart> own_parts(Version v) override {
    std::vector<OwnPart> own;
    for (const auto& [at, bytes] : parts) own.push_back({at, place(v).subspan(at, bytes)});
    for (const auto& [at, bytes] : lies) own.push_back({at, place(v).first(bytes)});
    return own.empty() ? std::vector<OwnPart>{{0, place(v)}} : own;
  }
  std::vector<arena::Range> lies;   // Parts that it sends, but that do not fit.
  std::vector<arena::Range> parts;  // The parts in use; empty: all bytes.
  Result<arena::Arena*> hold_for(Rank ward, std::uint64_t bytes) override {
    if (full) return Error{Blame::kWorld, "there is no room"};
    const auto found = held_.find(ward);
    if (found != held_.end() && found->second.layout().private_bytes == bytes) {
      return &found->second;
    }
    held_.erase(ward);
    auto made = arena::Arena::open(cat(folder_, "/rank-", ward, ".held-by-", rank_),
                                   arena::Layout::held_for(ward, bytes), ++run_);
    if (!made) return made.error();
    return &held_.emplace(ward, *std::move(made)).first->second;
  }
  arena::Arena& held(Rank ward) { return held_.at(ward); }

  [[nodiscard]] Status show(const std::string&) override { return {}; }
  void forget_held() override { held_.clear(); }
  [[nodiscard]] Status begin(const arena::Position&) override { return {}; }
  Result<Received> receive(const wire::Order&, Version) override { return Received{}; }
  void stage(Version, const arena::StagedStep&) override {}
  void unstage() override {}
  void update(std::size_t) override {}
  void finish() override {}
  collective::Registered gradients() override { return {}; }

  bool full = false;

 private:
  Rank rank_;
  std::string folder_;
  Version version_ = 4;
  Version staged_ = 4;
  std::array<std::vector<std::byte>, 2> places_;
  std::map<Rank, arena::Arena> held_;
  // So that no store finds arenas of a former one.
  static inline std::atomic<std::uint64_t> run_ = 0;
};

class PrivateCopiesTest : public ::testing::Test {
 protected:
  void use(const std::vector<int>& hosts, std::uint64_t bytes = 3000) {
    job_ = std::make_unique<SpanJob>(hosts);
    holders_ = planner::holders(hosts);
    for (int rank = 0; rank < job_->size(); ++rank) {
      // No two ranks have the same number of bytes.
      stores_.push_back(std::make_unique<TestStore>(
          rank, bytes + 100 * static_cast<std::uint64_t>(rank), folder_.path()));
      stores_.back()->set(4, 4);
    }
  }
  using Body = std::function<void(Rank, PrivateCopies&)>;
  // Every rank joins in a thread of its own, and then calls `body`.
  void run(const Body& body = [](Rank, PrivateCopies&) {}) {
    ++generation_;
    errors_.assign(stores_.size(), "");
    std::vector<std::jthread> threads;
    for (Rank rank = 0; rank < job_->size(); ++rank) {
      threads.emplace_back([this, rank, &body] {
        auto& error = errors_[static_cast<std::size_t>(rank)];
        auto joined = PrivateCopies::join(options(rank), store(rank));
        joined ? body(rank, **joined) : (void)(error = joined.error().what);
      });
    }
  }
  PrivateCopies::Options options(Rank rank) {
    return {.layout = job_->layout(rank),
            .generation = generation_,
            .rank = rank,
            .deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60),
            .stop = stop_.get_token(),
            .must_stop = [this] { return group_is_over_.load(); }};
  }
  TestStore& store(Rank rank) { return *stores_[static_cast<std::size_t>(rank)]; }
  void expect_whole(Version version, Version staged) {
    for (Rank rank = 0; rank < job_->size(); ++rank) {
      const Rank holder = holders_[static_cast<std::size_t>(rank)];
      auto& copy = store(holder).held(rank);
      EXPECT_EQ(copy.version(), version) << rank;
      EXPECT_EQ(copy.staged(), staged) << rank;
      for (const Version v : {version, staged}) {
        const auto place = copy.private_bytes(v);
        EXPECT_EQ(place.size(), store(rank).own_bytes());
        EXPECT_TRUE(std::all_of(place.begin(), place.end(),
                                [&](auto b) { return b == TestStore::mark(rank, v); }));
      }
    }
  }
  void stage(Rank rank, PrivateCopies& copies, Version n) {
    store(rank).set(n - 1, n);
    const auto exchanged = copies.exchange(n);
    EXPECT_TRUE(exchanged) << exchanged.error().what;
  }

  os::TemporaryFolder folder_{"/dev/shm"};
  std::unique_ptr<SpanJob> job_;
  std::vector<Rank> holders_;
  std::vector<std::unique_ptr<TestStore>> stores_;
  std::vector<std::string> errors_;
  std::stop_source stop_;
  std::atomic<bool> group_is_over_ = false;
  Generation generation_ = 0;
};

TEST_F(PrivateCopiesTest, EachHolderHasTheVersionAtOnceAndEachStepAfterIt) {
  for (const auto& hosts : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 2}, {0, 0, 0, 1}}) {
    stores_.clear();
    use(hosts);
    run();
    expect_whole(4, 4);
    run([this](Rank rank, PrivateCopies& copies) {
      for (Version n = 5; n < 9; ++n) {
        stage(rank, copies, n);
        for (Rank ward = 0; ward < job_->size(); ++ward) {
          if (holders_[static_cast<std::size_t>(ward)] == rank) store(rank).held(ward).settle(n);
        }
      }
      stage(rank, copies, 9);
    });
    expect_whole(8, 9);
  }
}

// Links that falsify bytes: an exchange fails, or the holder has what the ward has.
TEST_F(PrivateCopiesTest, WhatWasDamagedOnTheWayIsNotTaken) {
  std::atomic<int> failed = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    stores_.clear();
    use({0, 1}, 100'000);
    job_->meeting().liars = seed;
    run([&](Rank rank, PrivateCopies& copies) {
      for (Version n = 5; n < 30; ++n) {
        store(rank).set(n - 1, n);
        if (!copies.exchange(n)) return void(++failed);
        auto& held = store(rank).held(1 - rank);
        EXPECT_TRUE(std::ranges::all_of(
            held.private_bytes(n), [&](std::byte b) { return b == TestStore::mark(1 - rank, n); }))
            << "seed " << seed;
        held.settle(n);
      }
    });
  }
  EXPECT_GT(failed, 20);
}

TEST_F(PrivateCopiesTest, WhatAHolderHasAlreadyIsNotSentAgain) {
  use({0, 1}, std::uint64_t{1} << 20);
  run();
  // If the bytes were sent again, they would not stay 0.
  std::memset(store(1).held(0).private_bytes(4).data(), 0, 1 << 20);
  run();
  EXPECT_EQ(store(1).held(0).private_bytes(4)[0], std::byte{0});
}

TEST_F(PrivateCopiesTest, OnlyWhatIsUsedIsSent) {
  use({0, 1});
  for (Rank rank = 0; rank < 2; ++rank)
    store(rank).parts = {{0, 10}, {10, 0}, {500, 1}, {2000, 999}};
  run([this](Rank rank, PrivateCopies& copies) { stage(rank, copies, 5); });
  const auto place = store(1).held(0).private_bytes(5);
  for (std::size_t i = 0; i < place.size(); ++i) {
    const bool used = i < 10 || i == 500 || (i >= 2000 && i < 2999);
    ASSERT_EQ(place[i], used ? TestStore::mark(0, 5) : std::byte{0}) << i;
  }
  EXPECT_EQ(store(1).held(0).used(5), store(0).parts);
}

// The holder had the version before the one that it is given. The new one is committed, and stays
// through the next step.
TEST_F(PrivateCopiesTest, WhatIsGivenAtTheStartIsCommitted) {
  use({0, 1});
  run();
  for (Rank rank = 0; rank < 2; ++rank) store(rank).set(5, 5);
  run();
  expect_whole(5, 5);
  store(1).held(0).unstage();
  EXPECT_TRUE(store(1).held(0).has(5));
}

TEST_F(PrivateCopiesTest, WhoSendsNoSuchBytesIsNotHeard) {
  using Parts = std::vector<arena::Range>;
  for (const auto& parts :
       {Parts{{5000, 1}}, Parts{{10, 10}, {5, 10}}, Parts{{0, 10}, {2999, 2}}}) {
    stores_.clear();
    use({0, 1});
    store(0).lies = parts;
    run();
    EXPECT_EQ(errors_[1], "private state can not be passed on: a rank has sent no such bytes");
    EXPECT_FALSE(store(1).held(0).has(4));
  }
}

// A version that is being overwritten does not count any more.
TEST_F(PrivateCopiesTest, WhatHasNotComeWholeIsNotHeld) {
  use({0, 1});
  run([this](Rank rank, PrivateCopies& copies) {
    stage(rank, copies, 5);
    if (rank == 0) store(0).lies = {{5000, 1}};
    const auto exchanged = copies.exchange(5);  // The same version again, after a void step.
    EXPECT_FALSE(rank == 1 && exchanged);
  });
  EXPECT_TRUE(store(1).held(0).has(4) && !store(1).held(0).has(5));
  for (Rank rank = 0; rank < 2; ++rank) store(rank).set(8, 8);
  run();
  EXPECT_TRUE(store(1).held(0).fresh()) << "none but version 8 is of use, and that did not come";
}

TEST_F(PrivateCopiesTest, ASuccessorOfAHolderGetsTheVersion) {
  use({0, 0, 1, 1}, std::uint64_t{1} << 20);
  run([this](Rank rank, PrivateCopies& copies) { stage(rank, copies, 5); });
  for (Rank rank = 0; rank < 4; ++rank) store(rank).set(5, 5);
  stores_[2] = std::make_unique<TestStore>(2, (1 << 20) + 200, folder_.path());
  store(2).set(5, 5);
  run();
  expect_whole(5, 5);
}

TEST_F(PrivateCopiesTest, AStopEndsWhoeverWaits) {
  use({0, 1});
  run([this](Rank rank, PrivateCopies& copies) {
    if (rank == 1) return stop_.request_stop(), void();
    store(0).set(4, 5);
    EXPECT_FALSE(copies.exchange(5));
  });
  EXPECT_TRUE(store(1).held(0).has(4));
}

TEST_F(PrivateCopiesTest, TheEndOfAnotherEndsIt) {
  use({0, 1, 2});
  run([this](Rank rank, PrivateCopies& copies) {
    if (rank == 2) return;  // Rank 2 is gone.
    store(rank).set(4, 5);
    (void)copies.exchange(5);
    EXPECT_FALSE(copies.exchange(6));
  });
}

TEST_F(PrivateCopiesTest, AWaitIsOverOnceTheGroupIs) {
  use({0, 1});
  std::latch over(1);
  run([&](Rank rank, PrivateCopies& copies) {
    if (rank == 1) return over.wait();  // Its links last until this thread returns.
    store(0).set(4, 5);
    group_is_over_ = true;
    EXPECT_FALSE(copies.exchange(5));
    over.count_down();
  });
}

TEST_F(PrivateCopiesTest, WhoHasNoRoomSaysSoAndTheOthersWaitNoLonger) {
  use({0, 1});
  store(1).full = true;
  run();
  EXPECT_EQ(errors_[1], "there is no room");
  EXPECT_NE(errors_[0], "");
}

TEST_F(PrivateCopiesTest, RanksAtDifferentVersionsDoNotGoOn) {
  use({0, 1});
  store(1).set(5, 5);
  run();
  EXPECT_NE(errors_[0], "");
  EXPECT_NE(errors_[1], "");
}

}  // namespace
}  // namespace holdfast::runtime
