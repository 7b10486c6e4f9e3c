#include "runtime/scheduler/leadership.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/text.h"
#include "io/etcd_testing.h"
#include "os/files.h"
#include "os/host.h"
#include "runtime/jobs/agent_watch.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

const Leader kLeader{.run = 7,
                     .host = "10.0.0.2",
                     .port = 8118,
                     .host_name = "host2",
                     .agent = "12:34:56",
                     .attempt = 3,
                     .token_mark = "0123456789abcdef"};

TEST(Leader, IsWhatItSays) {
  EXPECT_EQ(leader_of(to_text(kLeader)), kLeader);
  EXPECT_EQ(leader_of(to_text({.run = 1})), Leader{.run = 1});
}

TEST(Leader, IsNotBelievedIfItIsDamaged) {
  const std::string text = to_text(kLeader);
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(leader_of(text.substr(0, size))) << size;
  }
  for (const std::string& other :
       {text + "x", text + "more=1\n", "run=1\n" + text, std::string(70'000, 'x'),
        std::string("\n"), "host=" + std::string(400, 'h') + text.substr(text.find('\n')),
        "run=0" + text.substr(5), "run=x" + text.substr(5), "run=\x1b" + text.substr(5)}) {
    EXPECT_FALSE(leader_of(other)) << other.substr(0, 100);
  }
}

class Campaigns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_TRUE(io::has_etcd()) << "tools/install --test installs etcd-server";
    servers = new io::EtcdServers;
    ASSERT_TRUE(servers->wait());
  }
  static void TearDownTestSuite() {
    delete servers;
    servers = nullptr;
  }
  Campaigns() {
    settings.job = testing::UnitTest::GetInstance()->current_test_info()->name();
    settings.etcd = servers->options().members;
    settings.etcd_lease = 2;
    settings.scheduler_timeout = 5s;
    settings.run = 7;
    settings.attempt = 1;
  }
  Result<std::unique_ptr<Leadership>> wait() { return Leadership::wait_for(loop, settings, trace); }

  static io::EtcdServers* servers;
  config::Settings settings;
  io::Loop loop;
  io::Trace trace;
};
io::EtcdServers* Campaigns::servers = nullptr;

wire::Formation of_run(const config::Settings& settings, std::uint64_t run) {
  return {.job = settings.job, .run_id = run, .generation = 1};
}

TEST_F(Campaigns, TheFirstOfARunBeginsAtOnce) {
  const auto led = wait();
  ASSERT_TRUE(led && *led);
  EXPECT_FALSE((*led)->lead().takes_over);
  EXPECT_EQ((*led)->lead().key.leader.run, 7U);
  const auto journal = (*led)->journal();
  ASSERT_TRUE(journal && (*journal)->begin(of_run(settings, 7)));
  EXPECT_TRUE((*journal)->store({.kept = {{"a", "1"}}}));
}

TEST_F(Campaigns, ASuccessorOfTheSameRunGoesOnAtOnce) {
  auto first = wait();
  ASSERT_TRUE(first && *first && (*(*first)->journal())->begin(of_run(settings, 7)));
  (*first)->give_up();
  settings.attempt = 2;
  const Instant began = io::Loop::now();
  const auto second = wait();
  ASSERT_TRUE(second && *second);
  EXPECT_TRUE((*second)->lead().takes_over);
  EXPECT_LT(io::Loop::now() - began, 1s);
}

// The campaign is asking a scheduler whether it lives when it learns that this one is dead. The
// loop outlives the campaign, and so the answer must not reach it.
TEST_F(Campaigns, LeavesNothingBehindThatItHasAsked) {
  const os::TemporaryFolder folder;
  settings.token_file = folder / "token";
  ASSERT_TRUE(os::write_file_atomically(settings.token_file, "a token of this job\n", 0600));
  settings.agent = AgentWatch::words_for_this_process();
  auto first = wait();
  ASSERT_TRUE(first && *first && (*(*first)->journal())->begin(of_run(settings, 7)));
  const auto directory = os::runtime_directory(settings.job);
  ASSERT_TRUE(directory && (*first)->publish(*directory, "127.0.0.1", 1));
  settings.attempt = 2;
  settings.run = 9;  // The run of its own agent. Its first process had taken over run 7.
  const auto second = wait();
  ASSERT_TRUE(second && *second);
  EXPECT_EQ((*second)->lead().key.leader.run, 7U);
  loop.after(500ms, [&] { loop.stop(); });
  loop.run();
  std::filesystem::remove_all(*directory);
}

TEST_F(Campaigns, AnotherJobsTokenIsRefusedByName) {
  const auto first = wait();
  ASSERT_TRUE(first && *first);
  const os::TemporaryFolder folder;
  settings.token_file = folder / "token";
  ASSERT_TRUE(os::write_file_atomically(settings.token_file, "a token of another job\n", 0600));
  settings.run = 8;
  settings.standby = true;
  const auto second = wait();
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().what.find("another HOLDFAST_JOB"), std::string::npos)
      << second.error().what;
}

TEST_F(Campaigns, TheEndOfAJobEndsWhoStandsBy) {
  auto first = wait();
  ASSERT_TRUE(first && *first);
  const auto journal = (*first)->journal();
  ASSERT_TRUE(journal && (*journal)->begin(of_run(settings, 7)));
  std::thread ends([&] {
    std::this_thread::sleep_for(500ms);  // How long the job lasts; waits for nothing.
    EXPECT_TRUE((*journal)->remove());
    (*first)->give_up();
  });
  settings.run = 8;
  settings.standby = true;
  const auto second = wait();
  ends.join();
  ASSERT_TRUE(second) << second.error().what;
  EXPECT_EQ(*second, nullptr);
}

TEST_F(Campaigns, NobodyWaitsForEverForEtcd) {
  settings.etcd = "http://127.0.0.1:1";
  settings.attempt = 2;
  settings.scheduler_timeout = 1s;
  const auto led = wait();
  ASSERT_FALSE(led);
  EXPECT_NE(led.error().what.find("no member of etcd answers"), std::string::npos)
      << led.error().what;
}

}  // namespace
}  // namespace holdfast::runtime
