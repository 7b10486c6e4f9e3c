// LogFolder: what ends the logs is reported once, and ends nothing else.
#include "runtime/agent/log_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <vector>

#include "base/text.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

class Logs : public testing::Test {
 protected:
  Logs() { fs::create_directories(path_); }
  ~Logs() override { fs::remove_all(path_); }

  void say(std::string text) {
    const std::lock_guard lock(mutex_);
    said_.push_back(std::move(text));
    changed_.notify_all();
  }
  // The first thing said; empty if nothing is said within 30 s.
  std::string first() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 30s, [this] { return !said_.empty(); });
    return said_.empty() ? std::string() : said_.front();
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return said_.size();
  }

  const std::string path_ = fs::temp_directory_path() / cat("log-folder-test-", ::getpid());
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> said_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Logs, TellOfAFolderThatWentAwayAndMakeItAgain) {
  LogFolder logs(
      path_, [this](std::string text) { say(std::move(text)); }, 1ms);
  fs::remove_all(path_);
  EXPECT_TRUE(has(first(), path_)) << first();
  EXPECT_TRUE(has(first(), "make the folder again")) << first();
  const std::string log = path_ + "/worker_0.log";
  EXPECT_EQ(logs.output_for(log), log);
  EXPECT_TRUE(fs::exists(log));
  EXPECT_EQ(count(), 1U);
}

TEST_F(Logs, AreNoReasonNotToStartAProcess) {
  LogFolder logs(
      path_, [this](std::string text) { say(std::move(text)); }, 1h);
  fs::remove_all(path_);
  std::ofstream(path_) << "now a file\n";
  EXPECT_EQ(logs.output_for(path_ + "/worker_0.log"), "/dev/null");
  EXPECT_EQ(logs.output_for(path_ + "/worker_1.log"), "/dev/null");
  EXPECT_EQ(count(), 1U);
  EXPECT_TRUE(has(first(), "Not a directory")) << first();
}

// Like a full disk, the limit on file sizes lets the folder and its files be opened, but not
// written.
TEST_F(Logs, TellOfADiskThatTakesNoMore) {
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit small{4096, usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    const LogFolder logs(
        path_, [this](std::string text) { say(std::move(text)); }, 1ms);
    EXPECT_TRUE(has(first(), "File too large")) << first();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &usual), 0);
  ::signal(SIGXFSZ, before);
  EXPECT_EQ(count(), 1U);
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(Logs, GoOnWhereOnlyThisProcessLacksSomethingForAMoment) {
  std::atomic<int> trials = 0;
  const LogFolder logs(
      path_, [this](std::string text) { say(std::move(text)); }, 1ms,
      [&](const std::string&) {
        const std::array errors{EMFILE, ENFILE, ENOMEM, ENOSPC};
        return errors.at(static_cast<std::size_t>(trials++));
      });
  EXPECT_TRUE(has(first(), "No space left")) << first();
  EXPECT_EQ(trials, 4);
}

TEST_F(Logs, EndThoughAWriteHangs) {
  struct Server {
    std::promise<void> asked;
    std::promise<void> answers;
    std::promise<void> done;
  };
  const auto server = std::make_shared<Server>();
  auto logs = std::make_unique<LogFolder>(
      path_, [this](std::string text) { say(std::move(text)); }, 1ms,
      [server](const std::string&) {
        server->asked.set_value();
        server->answers.get_future().wait();
        server->done.set_value();
        return EIO;
      });
  server->asked.get_future().wait();
  auto end = std::async(std::launch::async, [&] { logs.reset(); });
  EXPECT_EQ(end.wait_for(30s), std::future_status::ready);
  server->answers.set_value();
  server->done.get_future().wait();
  end.wait();
  EXPECT_EQ(count(), 0U);
}

TEST_F(Logs, AreLeftAloneWhereAllIsWell) {
  const std::string log = path_ + "/worker_0.log";
  EXPECT_EQ(LogFolder(path_, [this](std::string text) { say(std::move(text)); }).output_for(log),
            log);
  EXPECT_EQ(count(), 0U);
}

}  // namespace
}  // namespace holdfast::runtime
