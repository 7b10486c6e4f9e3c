// A rank's arena as a StateStore: what a copy that fails may leave.
#include "runtime/worker/arena_store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "config/settings.h"
#include "runtime/worker/worker.h"

namespace holdfast::runtime {
namespace {

arena::Layout layout() {
  arena::Layout layout;
  layout.parameters = {{"w", 100}};
  layout.optimizer = arena::Optimizer::kMomentum;
  layout.private_bytes = 16;
  return layout;
}

// The common part of the state is copied, but not what only the rank itself had. If then no rank
// has a state any more, all begin at version 0, whose moments no program fills.
TEST(ArenaStore, LeavesNothingOfACopyThatFailed) {
  const char* const nothing[] = {nullptr};
  const auto settings = config::from_environment(nothing);
  ASSERT_TRUE(settings.has_value());
  auto worker = Worker::start(*settings);
  ASSERT_TRUE(worker.has_value()) << worker.error().what;
  auto identity = (*worker)->identity();
  ASSERT_TRUE(identity.has_value());
  const std::string other = cat(identity->directory, "/rank-1.arena");
  auto source = arena::Arena::open(other, layout(), identity->run_id, nullptr);
  ASSERT_TRUE(source.has_value()) << source.error().what;
  for (const auto numbers : {source->parameter(0), source->moment(0, 0)}) {
    std::fill(numbers.begin(), numbers.end(), 7.0F);
  }
  std::ranges::fill(source->private_bytes(0), std::byte{7});
  source->begin_version0({});

  auto opened = in_arena(layout(), Secrecy::kOwn)(**worker, *identity);
  ASSERT_TRUE(opened.has_value()) << opened.error().what;
  StateStore& store = **opened;
  EXPECT_FALSE(store.has_remains());
  wire::Order order{
      .act = wire::Act::kReceive, .source = {.holder = 1}, .private_source = {.holder = 2}};
  EXPECT_FALSE(store.receive(order, 0).has_value());
  EXPECT_TRUE(store.has_remains());
  store.clear();
  EXPECT_FALSE(store.has_remains());
  ASSERT_TRUE(store.begin({}));
  auto own = arena::Arena::open(cat(identity->directory, "/rank-0.arena"), layout(),
                                identity->run_id, nullptr);
  ASSERT_TRUE(own.has_value()) << own.error().what;
  EXPECT_EQ(own->version(), 0U);
  for (const auto numbers : {own->parameter(0), own->moment(0, 0)}) {
    EXPECT_TRUE(std::ranges::all_of(numbers, [](float number) { return number == 0.0F; }));
  }
  EXPECT_TRUE(
      std::ranges::all_of(own->private_bytes(0), [](std::byte b) { return b == std::byte{}; }));
}

}  // namespace
}  // namespace holdfast::runtime
