// Memory errors in an arena: what is lost, and how a rank gets it back from another one's arena.
#include "arena/losses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "arena/arrival.h"
#include "arena/testing.h"
#include "os/lost_pages.h"
#include "os/testing.h"

namespace holdfast::arena {
namespace {

using testing::Directory;

constexpr std::uint64_t kLossesRun = 7;
constexpr std::uint64_t kPage = os::kPage;
// Each region is 8 pages, though it does not begin with one; the private bytes are 6.
const Layout kState{.parameters = {{"w", 8 * kPage / sizeof(float)}},
                    .optimizer = Optimizer::kAdam,
                    .private_bytes = 6 * kPage};

class LossesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (Arena* arena : {&arena_, &other_}) {
      fill(std::as_writable_bytes(arena->parameters()), 1);
      for (const std::size_t k : {0U, 1U}) fill(std::as_writable_bytes(arena->moments(k)), k + 2);
      fill(arena->private_bytes(4), 4);
      arena->begin(4, {});
    }
  }
  Arena open(const std::string& name) {
    auto arena = Arena::open(directory_.file(name), kState, kLossesRun);
    EXPECT_TRUE(arena) << arena.error().what;
    return *std::move(arena);
  }
  static void fill(std::span<std::byte> bytes, std::size_t seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(seed + i % 89);
  }
  // Takes the page of `arena_` at this offset in the file, and touches it.
  void lose(std::uint64_t offset) {
    offset = offset / kPage * kPage;
    auto* gradients = reinterpret_cast<std::byte*>(arena_.gradients().data());
    std::byte* page = gradients + (offset - kState.gradients_offset());
    os::lose_page(page);
    const auto touched = *static_cast<volatile std::byte*>(page);
    EXPECT_EQ(touched, std::byte{});
  }
  static std::uint64_t state(std::size_t region, std::uint64_t page) {
    const std::uint64_t begin =
        region == 0 ? kState.parameters_offset() : kState.moments_offset(region - 1);
    return begin + page * kPage;
  }
  // What is lost in all regions if the page at state(region, page) is.
  static std::vector<Range> lines(std::size_t region, std::uint64_t page) {
    std::vector<Range> all;
    const std::uint64_t from = state(region, page) / kPage * kPage - state(region, 0);
    for (const std::size_t k : {0U, 1U, 2U}) all.push_back({state(k, 0) + from, kPage});
    return all;
  }
  static std::uint64_t own(Version version, std::uint64_t page) {
    return kState.private_offset(version % 2) + page * kPage;
  }
  static std::vector<Range> pages(std::vector<std::uint64_t> offsets) {
    std::vector<Range> all;
    for (const std::uint64_t offset : offsets) all.push_back({offset, kPage});
    return all;
  }
  void expect_equal() {
    EXPECT_EQ(arena_.digest(), other_.digest());
    const auto a = arena_.private_bytes(4);
    EXPECT_EQ(std::memcmp(a.data(), other_.private_bytes(4).data(), a.size()), 0);
  }

  Directory directory_;
  Arena arena_ = open("arena");
  Arena other_ = open("other");
};

TEST_F(LossesTest, ANewArenaHasNone) {
  EXPECT_EQ(arena_.losses().count, 0U);
  EXPECT_FALSE(damage_of(arena_, 0, true).any());
}

TEST_F(LossesTest, WhatUpdatesUseTogetherIsLostTogether) {
  lose(state(1, 3));
  EXPECT_EQ(damage_of(arena_, 0, false).shared, lines(1, 3));
  EXPECT_FALSE(damage_of(arena_, 0, false).is_private);
}

// The gradients are computed anew, unless an update has used what took their place.
TEST_F(LossesTest, OfGradientsCountOnlyAfterAnUpdate) {
  const std::uint64_t at = 2 * kPage;
  lose(kState.gradients_offset() + at);  // The gradients begin with a page.
  EXPECT_FALSE(damage_of(arena_, 0, false).any());
  EXPECT_EQ(damage_of(arena_, 0, true).shared,
            pages({state(0, 0) + at, state(1, 0) + at, state(2, 0) + at}));
}

TEST_F(LossesTest, OfPrivateBytesCountInVersionsThatAreHeld) {
  lose(own(5, 1));
  EXPECT_FALSE(damage_of(arena_, 0, true).any()) << "no step is staged";
  lose(own(4, 1));
  EXPECT_TRUE(damage_of(arena_, 0, true).is_private);
  EXPECT_TRUE(damage_of(arena_, kPage, true).is_private);
  EXPECT_FALSE(damage_of(arena_, 2 * kPage, true).is_private);
  EXPECT_EQ(damage_of(arena_, 2 * kPage, true).shared, pages({own(4, 1)}));
  const auto split = damage_of(arena_, kPage + 100, true);
  EXPECT_TRUE(split.is_private);
  EXPECT_EQ(split.shared, (std::vector<Range>{{own(4, 1), 100}}));
  arena_.stage(5, {.private_bytes = arena_.private_bytes(5), .arguments = {}, .position = {}});
  EXPECT_EQ(damage_of(arena_, 2 * kPage, true).shared, pages({own(4, 1), own(5, 1)}));
}

TEST_F(LossesTest, ThatAreTooManyToBeListedAreLossesOfAll) {
  lose(state(0, 1));
  auto& list = const_cast<os::LossList&>(arena_.losses());
  list.count = os::LossList::kMost + 1;
  const Damage damage = damage_of(arena_, 0, false);
  EXPECT_TRUE(damage.is_private);
  for (const std::size_t k : {0U, 1U, 2U}) {
    const Range region{state(k, 0), kState.gradients_bytes()};
    EXPECT_NE(std::ranges::find(damage.shared, region), damage.shared.end());
  }
}

// The list lies in a file, which may hold anything.
TEST_F(LossesTest, ThatCanNotBeAreNone) {
  lose(state(0, 1));
  auto& list = const_cast<os::LossList&>(arena_.losses());
  list.losses[0] = {~std::uint64_t{0} - 10, ~std::uint64_t{0}};
  EXPECT_FALSE(damage_of(arena_, 0, true).any());
  list.losses[0] = {kState.gradients_bytes(), ~std::uint64_t{0}};
  const Damage damage = damage_of(arena_, 0, true);
  for (const auto& [offset, bytes] : damage.shared) {
    EXPECT_LE(offset + bytes, kState.private_offset(0));
  }
}

TEST_F(LossesTest, ASuccessorFindsThem) {
  lose(state(0, 5));
  const Arena successor = open("arena");
  EXPECT_EQ(successor.losses().count, 1U);
  EXPECT_EQ(damage_of(successor, 0, false).shared.size(), 3U);
}

TEST_F(LossesTest, AreRepairedFromAnotherArena) {
  for (const std::uint64_t at : {state(0, 1), state(2, 6), own(4, 1)}) lose(at);
  const Damage damage = damage_of(arena_, 3 * kPage, false);
  EXPECT_EQ(damage.shared.size(), 7U);
  Arrival arrival(arena_, 4, 3 * kPage);
  const Status repaired = arrival.repair(other_.path(), damage);
  ASSERT_TRUE(repaired) << repaired.error().what;
  expect_equal();
  EXPECT_EQ(arena_.losses().count, 0U);
  EXPECT_EQ(arena_.version(), 4U);
}

TEST_F(LossesTest, AreNotRepairedFromAnArenaThatHasSomeOrIsAtAnotherVersion) {
  lose(state(0, 1));
  const Damage damage = damage_of(arena_, 0, false);
  auto& list = const_cast<os::LossList&>(other_.losses());
  list.count = 1;
  EXPECT_FALSE(Arrival(arena_, 4, 0).repair(other_.path(), damage));
  list.count = 0;
  other_.stage(5, {.private_bytes = other_.private_bytes(5), .arguments = {}, .position = {}});
  other_.update(1);
  EXPECT_FALSE(Arrival(arena_, 4, 0).repair(other_.path(), damage));
  EXPECT_EQ(arena_.losses().count, 1U);
}

TEST_F(LossesTest, ThatComeWhileOthersAreRepairedStay) {
  lose(state(0, 1));
  const Damage damage = damage_of(arena_, 0, false);
  lose(state(0, 4));
  ASSERT_TRUE(Arrival(arena_, 4, 0).repair(other_.path(), damage));
  EXPECT_EQ(arena_.losses().count, 2U);
  ASSERT_TRUE(Arrival(arena_, 4, 0).repair(other_.path(), damage_of(arena_, 0, false)));
  EXPECT_EQ(arena_.losses().count, 0U);
  expect_equal();
}

TEST_F(LossesTest, AreForgottenWhenAllIsReplaced) {
  lose(state(0, 1));
  Arrival arrival(arena_, 4, kState.private_bytes);
  ASSERT_TRUE(arrival.copy(Arrival::From::kRank, other_.path()));
  ASSERT_TRUE(arrival.end());
  EXPECT_EQ(arena_.losses().count, 0U);
  expect_equal();
}

TEST_F(LossesTest, ThatAreMoreByNowAreNotForgotten) {
  lose(state(0, 1));
  lose(state(0, 1));
  arena_.clear_losses(1);
  EXPECT_EQ(arena_.losses().count, 2U);
  arena_.clear_losses(2);
  EXPECT_EQ(arena_.losses().count, 0U);
}

}  // namespace
}  // namespace holdfast::arena
