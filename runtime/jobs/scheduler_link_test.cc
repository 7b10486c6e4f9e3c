#include "runtime/jobs/scheduler_link.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "os/host.h"
#include "os/testing.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
using Events = std::vector<std::string>;

const char* const kToken = "0123456789abcdef";

// A link, and a scheduler for it to find.
class SchedulerLinkTest : public ::testing::Test {
 protected:
  // Runs the loop until `then` stops it.
  void run(Duration patience, std::function<void(const std::string& what)> then) {
    os::TemporaryFolder folder;
    ASSERT_TRUE(os::write_file_atomically(folder / "token", kToken));
    if (!drawn_) settings_.token_file = folder / "token";
    listener_->serve({.membership = {.job = settings_.job, .token = token_},
                      .on_accept = [this](const auto& made, auto) { accepted(made); }});
    settings_.sched_host = "127.0.0.1";
    settings_.sched_port = listener_->port();
    settings_.scheduler_timeout = patience;
    then_ = std::move(then);
    link_.open();
    loop_.run();
  }
  void happens(const std::string& what) {
    all_.push_back(what);
    then_(what);
  }
  void accepted(const std::shared_ptr<io::Connection>& connection) {
    peer_ = connection;
    connection->start({.on_message =
                           [this](wire::Message message) {
                             heard_.push_back(std::move(message));
                             peer_->send(answer_);
                           },
                       .on_closed = [this](const Error&) { peer_.reset(); }});
  }

  std::function<void(const std::string&)> then_;
  Events all_;  // All that has happened, in order.
  std::string why_;
  std::string token_ = kToken;
  bool drawn_ = false;  // The token is in the job's folder.
  std::vector<wire::Message> heard_;
  wire::Message answer_ = wire::Got{};
  std::vector<wire::Message> told_;

  io::Loop loop_;
  std::shared_ptr<io::Connection> peer_;
  std::unique_ptr<io::Listener> listener_ = *io::listen(loop_, "127.0.0.1", 0);
  config::Settings settings_;
  SchedulerLink link_{loop_,
                      settings_,
                      wire::PeerKind::kWorker,
                      {.on_up =
                           [this] {
                             happens("up");
                             link_.send(wire::Get{.at_once = true});
                           },
                       .on_message =
                           [this](const wire::Message& message) {
                             told_.push_back(message);
                             happens("message");
                           },
                       .on_down = [this] { happens("down"); },
                       .on_out_of_reach =
                           [this](const Error& why) {
                             why_ = why.what;
                             happens("out of reach");
                           }}};
};

TEST_F(SchedulerLinkTest, IsMadeAnewUntilTheJobIsOver) {
  int messages = 0;
  run(60s, [&](const std::string& what) {
    if (what == "message") peer_->close();
    if (what == "message" && ++messages == 2) link_.retire();
    // Long enough for another connection.
    if (what == "down" && messages == 2) loop_.after(200ms, [&] { loop_.stop(); });
  });
  EXPECT_EQ(all_, (Events{"up", "message", "down", "up", "message", "down"}));
}

TEST_F(SchedulerLinkTest, SaysAtEveryTryThatNoSchedulerAnswers) {
  token_ = "another token of a job";
  run(100ms, [&](const std::string&) {
    if (all_.size() == 3) loop_.stop();
  });
  EXPECT_EQ(all_, (Events{"out of reach", "out of reach", "out of reach"}));
  EXPECT_NE(why_.find("did not accept this process"), std::string::npos) << why_;
}

TEST_F(SchedulerLinkTest, ASchedulerThatCanNotBeReadHasRefusedThisProcess) {
  answer_ = wire::Waiting{{.kind = static_cast<wire::Reason::Kind>(250)}};
  run(60s, [&](const std::string& what) {
    if (what == "message") loop_.post([&] { peer_->close(); });
    // Long enough for another connection.
    if (what == "down") loop_.after(200ms, [&] { loop_.stop(); });
  });
  EXPECT_EQ(all_, (Events{"up", "message", "down"}));
  const auto* refused = std::get_if<wire::Refused>(&told_.at(0));
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->reason.kind, wire::Reason::Kind::kUnreadable);
  EXPECT_NE(refused->reason.detail.find("what the scheduler says can not be read: 127.0.0.1:"),
            std::string::npos)
      << refused->reason.detail;
}

// The scheduler is gone, and so is all that it had left on this host.
TEST_F(SchedulerLinkTest, SaysThatTheJobHasEndedSinceItWasThere) {
  settings_.job = cat("link-test-", ::getpid());
  const std::string directory = *os::runtime_directory(settings_.job);
  ASSERT_TRUE(os::write_file_atomically(directory + "/token", kToken));
  drawn_ = true;
  run(100ms, [&](const std::string& what) {
    if (what == "up") {
      ::unlink((directory + "/token").c_str());
      ::rmdir(directory.c_str());
      listener_.reset();
      loop_.post([&] { peer_->close(); });
    }
    if (what == "out of reach") loop_.stop();
  });
  EXPECT_NE(why_.find(settings_.job + " has ended"), std::string::npos) << why_;
  EXPECT_NE(why_.find("Connection refused"), std::string::npos) << why_;
  EXPECT_EQ(why_.find("HOLDFAST_TOKEN_FILE"), std::string::npos) << why_;
}

TEST_F(SchedulerLinkTest, SendsWhatIsQueuedBeforeItCloses) {
  const wire::Message big = wire::Put{.key = "k", .value = std::string(wire::kMaxValueBytes, 'v')};
  run(60s, [&](const std::string& what) {
    if (what != "message") return;
    for (int i = 0; i < 2; ++i) link_.send(big);
    link_.close([&] { loop_.stop(); });
  });
  ASSERT_EQ(heard_.size(), 3U);
  EXPECT_EQ(heard_.back(), big);
  EXPECT_EQ(all_, (Events{"up", "message"})) << "no handler is called any more";
}

}  // namespace
}  // namespace holdfast::runtime
