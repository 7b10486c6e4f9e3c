// take_ownership(): which owners are waited for; and every wait ends.
#include "runtime/worker/ownership.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/text.h"
#include "os/fd.h"
#include "os/process.h"
#include "os/spawn.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

class Ownership : public testing::Test {
 protected:
  ~Ownership() override { std::filesystem::remove(owner_); }
  Status take(Duration patience) {
    return take_ownership(
        path_,
        [] {
          std::this_thread::sleep_for(1ms);
          return Status{};
        },
        patience);
  }
  std::string path_ = std::filesystem::temp_directory_path() / cat("ownership-test-", ::getpid());
  std::string owner_ = path_ + ".owner";
};

TEST_F(Ownership, IsNotWaitedForBeyondThePatienceWhereTheFileStaysLocked) {
  const os::Fd holder(::open(owner_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(holder.get(), LOCK_EX), 0);
  const auto taken = take(20ms);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().what.find(owner_), std::string::npos) << taken.error().what;
  ASSERT_EQ(::flock(holder.get(), LOCK_UN), 0);
  EXPECT_TRUE(take(0ms));
}

TEST_F(Ownership, PassesOnOnlyWhenTheOwnerIsDead) {
  os::SpawnOptions options;
  options.argv = {"/bin/sleep", "1000"};
  const auto child = os::spawn(options);
  ASSERT_TRUE(child) << child.error().what;
  std::ofstream(owner_) << child->pid << ' ' << os::start_time(child->pid).value_or(0) << '\n';
  const auto taken = take(20ms);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().what.find(cat("kill -9 ", child->pid)), std::string::npos);
  ASSERT_TRUE(os::send_signal(child->pidfd.get(), SIGSTOP));
  EXPECT_TRUE(take(60s)) << "a stopped one is ended";
  EXPECT_EQ(*os::wait_for(child->pidfd.get()), (os::Exit{0, SIGKILL}));
}

}  // namespace
}  // namespace holdfast::runtime
