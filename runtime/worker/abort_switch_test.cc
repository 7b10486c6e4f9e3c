// The abort switch: whatever a training thread does with the others ends at a stop.
#include "runtime/worker/abort_switch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/text.h"

namespace holdfast::runtime {
namespace {

class AbortSwitchTest : public testing::Test {
 protected:
  AbortSwitchTest() { std::filesystem::create_directories(directory_); }
  ~AbortSwitchTest() override { std::filesystem::remove_all(directory_); }
  // A group of this rank alone.
  std::shared_ptr<collective::Group> form(const std::stop_token& token) {
    auto formed = collective::Group::join(
        {.directory = directory_, .generation = 1, .run_id = 7, .rank = 0, .world_size = 1}, token);
    EXPECT_TRUE(formed) << formed.error().what;
    return formed ? *std::move(formed) : nullptr;
  }
  std::string directory_ =
      std::filesystem::temp_directory_path() / cat("abort-switch-test-", ::getpid());
  AbortSwitch switch_;
};

TEST_F(AbortSwitchTest, EndsTheGroupThatItHolds) {
  switch_.arm();
  const auto group = form(switch_.token());
  switch_.hold(group.get());
  EXPECT_FALSE(group->aborted());
  EXPECT_TRUE(switch_.stop(1)) << "no sum is under way";
  EXPECT_TRUE(group->aborted());
}

// Between the forming of a group and the word that it is there, a stop may come.
TEST_F(AbortSwitchTest, EndsAGroupThatItHoldsOnlyAfterTheStop) {
  switch_.arm();
  const auto group = form(switch_.token());
  EXPECT_TRUE(switch_.stop(1));
  switch_.hold(group.get());
  EXPECT_TRUE(group->aborted());
}

TEST_F(AbortSwitchTest, AStopIsForgottenOnceTheNextGroupIsArmed) {
  switch_.arm();
  EXPECT_TRUE(switch_.stop(1));
  EXPECT_TRUE(switch_.token().stop_requested());
  switch_.arm();
  EXPECT_FALSE(switch_.token().stop_requested());
  const auto group = form(switch_.token());
  switch_.hold(group.get());
  EXPECT_FALSE(group->aborted());
}

TEST_F(AbortSwitchTest, TellsItsHandlerTheGeneration) {
  Generation told = 0;
  switch_.on_stop([&](Generation generation) { told = generation; });
  (void)switch_.stop(3);
  EXPECT_EQ(told, 3U);
  switch_.on_stop(nullptr);
  (void)switch_.stop(4);
  EXPECT_EQ(told, 3U);
}

}  // namespace
}  // namespace holdfast::runtime
