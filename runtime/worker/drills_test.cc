// Drills of this process: each comes once, in its phase and not before its step. Those that end or
// stop the process are tried by tests/chaos/drills.py.
#include "runtime/worker/drills.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "config/settings.h"
#include "io/loop.h"
#include "runtime/worker/arena_store.h"
#include "runtime/worker/worker.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
using wire::DrillKind;

constexpr std::uint64_t kNumbers = 4096;

class DrillsTest : public ::testing::Test {
 protected:
  DrillsTest() {
    const char* const nothing[] = {nullptr};
    worker_ = *Worker::start(*config::from_environment(nothing));
    arena::Layout layout;
    layout.parameters = {{"w", kNumbers}};
    layout.optimizer = arena::Optimizer::kSgd;
    store_ = *in_arena(layout, Secrecy::kOwn)(*worker_, *worker_->identity());
    EXPECT_TRUE(store_->begin({}));  // Step 1 is under way.
  }
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<StateStore> store_;
  Drills drills_;
};

TEST_F(DrillsTest, ComeInTheirPhaseAndNotBeforeTheirStep) {
  std::vector<std::byte> bytes(100);
  drills_.may_flip({"w"}, [&](std::size_t) { return std::span(bytes); });
  const auto is_flipped = [&] {
    return std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{}; });
  };
  drills_.order({.kind = DrillKind::kFlip, .phase = Doing::kBetween, .at_step = 2, .seed = 7});
  drills_.begin(Doing::kBetween, *store_);
  EXPECT_FALSE(is_flipped()) << "step 1";
  drills_.order({.kind = DrillKind::kFlip, .phase = Doing::kBetween, .at_step = 1, .seed = 7});
  drills_.begin(Doing::kComputing, *store_);
  EXPECT_FALSE(is_flipped());
  drills_.begin(Doing::kBetween, *store_);
  EXPECT_TRUE(is_flipped());
  bytes.assign(100, std::byte{});
  drills_.begin(Doing::kBetween, *store_);
  EXPECT_FALSE(is_flipped()) << "it has come already";
}

TEST_F(DrillsTest, EachSeedFlipsOneBitOfAllThatIsCompared) {
  std::vector<std::byte> first(3);
  std::vector<std::byte> second(5);
  drills_.may_flip({"a", "b"}, [&](std::size_t i) { return std::span(i == 0 ? first : second); });
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    drills_.order({.kind = DrillKind::kFlip, .phase = Doing::kBetween, .seed = seed});
    drills_.begin(Doing::kBetween, *store_);
  }
  for (const auto& bytes : {first, second}) {
    for (const std::byte b : bytes) EXPECT_EQ(std::popcount(std::to_integer<unsigned>(b)), 1);
  }
}

TEST_F(DrillsTest, WhoTrainsOnOtherMemoryFlipsTheBitThere) {
  std::vector<std::byte> committed(6);
  std::vector<std::byte> trained(6);
  drills_.may_flip(
      {"a", "b"}, [&](std::size_t) { return std::span(committed).first(3); },
      [&](std::size_t which, std::uint64_t byte, unsigned bit) {
        trained[3 * which + byte] ^= std::byte{1} << bit;
        return true;
      });
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    drills_.order({.kind = DrillKind::kFlip, .phase = Doing::kStaging, .seed = seed});
  }
  drills_.begin(Doing::kStaging, *store_);
  for (const std::byte b : trained) EXPECT_EQ(std::popcount(std::to_integer<unsigned>(b)), 1);
  EXPECT_EQ(committed, std::vector<std::byte>(6));
}

TEST_F(DrillsTest, ALostPageIsOneThatIsNoticed) {
  drills_.order({.kind = DrillKind::kPage, .phase = Doing::kSumming, .seed = 3});
  drills_.begin(Doing::kSumming, *store_);
  EXPECT_EQ(store_->look_for_losses(true).pages, 1U);
}

TEST_F(DrillsTest, LinksAreCutOnceAndOnlyByACut) {
  int times = 0;
  Drills drills([&times]() -> std::size_t { return static_cast<std::size_t>(++times); });
  drills.order({.kind = DrillKind::kHang, .phase = Doing::kSumming, .for_ms = 1});
  drills.order({.kind = DrillKind::kCut, .phase = Doing::kCommitting});
  drills.begin(Doing::kSumming, *store_);
  EXPECT_EQ(times, 0);
  for (int again = 0; again < 2; ++again) drills.begin(Doing::kCommitting, *store_);
  EXPECT_EQ(times, 1);
}

TEST_F(DrillsTest, SlownessStaysAndAHangEnds) {
  drills_.order({.kind = DrillKind::kSlow, .phase = Doing::kComputing, .for_ms = 20});
  drills_.order({.kind = DrillKind::kHang, .phase = Doing::kSumming, .for_ms = 20});
  drills_.order({.kind = DrillKind::kSpin, .phase = Doing::kCommitting, .for_ms = 20});
  const auto takes = [&](Doing phase) {
    const Instant began = io::Loop::now();
    drills_.begin(phase, *store_);
    return io::Loop::now() - began;
  };
  for (Version n = 1; n <= 2; ++n) {
    EXPECT_GE(takes(Doing::kComputing), 20ms);
    EXPECT_LT(takes(Doing::kComputing), 20ms) << "once in a step";
    store_->stage(n, {});
    store_->update(1);
  }
  for (const Doing phase : {Doing::kSumming, Doing::kCommitting}) EXPECT_GE(takes(phase), 20ms);
}

TEST_F(DrillsTest, MoreThanWaitAreLeftOut) {
  std::vector<std::byte> bytes(40);
  drills_.may_flip({"w"}, [&](std::size_t) { return std::span(bytes); });
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    drills_.order({.kind = DrillKind::kFlip, .phase = Doing::kBetween, .seed = seed});
  }
  drills_.begin(Doing::kBetween, *store_);
  EXPECT_EQ(std::ranges::count(bytes, std::byte{}), 40 - 16);
}

TEST_F(DrillsTest, ANewSlownessTakesThePlaceOfTheOldOne) {
  for (const std::uint32_t ms : {200U, 1U}) {
    drills_.order({.kind = DrillKind::kSlow, .phase = Doing::kComputing, .for_ms = ms});
  }
  const Instant began = io::Loop::now();
  drills_.begin(Doing::kComputing, *store_);
  EXPECT_LT(io::Loop::now() - began, 200ms);
}

}  // namespace
}  // namespace holdfast::runtime
