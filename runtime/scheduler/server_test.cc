#include "runtime/scheduler/server.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/journal_testing.h"
#include "os/fd.h"
#include "os/files.h"
#include "os/testing.h"
#include "runtime/jobs/job_files.h"

namespace holdfast::runtime {
namespace {

const io::Membership kOfServer{.job = "job", .token = "a token for tests"};

// A scheduler in a thread of its own, and processes that talk to it.
class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    opened_.settings.job = "job";
    opened_.settings.worker_num = 2;
    opened_.settings.topo_timeout = opened_.settings.node_timeout = std::chrono::hours(1);
    opened_.settings.door_connections = 100;
    opened_.settings.door_seconds = std::chrono::minutes(1);
    opened_.directory = folder_.path();
    opened_.journal = std::make_unique<io::HeldJournal>(hand_);
    opened_.memory.formation = wire::Formation{.job = "job", .run_id = 7};
    opened_.memory.kept = {{"old", "1"}};
    auto listener = io::listen(its_loop_, "127.0.0.1", 0);
    EXPECT_TRUE(listener);
    port_ = (*listener)->port();
    thread_ = std::thread([this, listener = *std::move(listener)]() mutable {
      Server(its_loop_, std::move(opened_)).run(*listener, kOfServer);
      listener.reset();
    });
  }
  ~ServerTest() override {
    hand_->let_go();
    its_loop_.stop();
    thread_.join();
  }

  std::shared_ptr<io::Connection> connect(wire::PeerKind kind = wire::PeerKind::kWorker) {
    std::shared_ptr<io::Connection> made;
    auto membership = kOfServer;
    membership.kind = kind;
    io::connect(loop_, "127.0.0.1", port_, std::move(membership), std::chrono::seconds(60),
                [&](const auto& got) {
                  if (got) made = *got;
                  loop_.stop();
                });
    loop_.run();
    EXPECT_TRUE(made);
    made->start({.on_message = [this](wire::Message message) { hear(message); },
                 .on_closed = [](const Error&) {}});
    return made;
  }
  void hear(const wire::Message& message) {
    if (const auto* got = std::get_if<wire::Got>(&message)) {
      said_.push_back(cat("got ", got->found ? cat(got->key, '=', got->value) : "nothing"));
    } else if (const auto* kept = std::get_if<wire::Kept>(&message)) {
      said_.push_back(cat("kept ", kept->id));
    } else if (std::holds_alternative<wire::Assignment>(message)) {
      said_.emplace_back("assignment");
    } else if (std::holds_alternative<wire::StatusReply>(message)) {
      said_.emplace_back("status");
    }
    if (said_.size() >= awaited_) loop_.stop();
  }
  // The next messages that the processes get.
  std::vector<std::string> heard(std::size_t words) {
    awaited_ = words;
    if (said_.size() < awaited_) loop_.run();
    return std::exchange(said_, {});
  }
  using Words = std::vector<std::string>;

  const os::TemporaryFolder folder_;
  const std::shared_ptr<io::HeldJournal::Hand> hand_ = std::make_shared<io::HeldJournal::Hand>();
  io::Loop its_loop_;
  io::Loop loop_;
  Opened opened_;
  std::uint16_t port_ = 0;
  std::thread thread_;
  std::size_t awaited_ = 0;
  Words said_;
};

TEST_F(ServerTest, AnswersWhileItsJournalIsWritten) {
  const auto one = connect();
  const auto other = connect();
  one->send(wire::Put{.id = 1, .key = "a", .value = "1"});
  hand_->until_held();
  other->send(wire::Heartbeat{});
  other->send(wire::Get{.id = 1, .keys = {"a"}, .at_once = true});
  other->send(wire::Get{.id = 2, .keys = {"old"}});
  other->send(wire::Get{.id = 3, .keys = {"none"}, .at_once = true});
  ASSERT_EQ(heard(2), (Words{"got old=1", "got nothing"})) << "a is not durable";
  for (std::uint64_t id = 2; id <= 50; ++id) {
    one->send(wire::Put{.id = id, .key = cat(id), .value = "1"});
  }
  one->send(wire::Get{.id = 99, .keys = {"old"}});
  ASSERT_EQ(heard(1), Words{"got old=1"}) << "all before it were heard";
  const auto watcher = connect(wire::PeerKind::kObserver);
  watcher->send(wire::StatusQuery{});
  other->send(wire::Get{.id = 4, .keys = {"old"}});
  ASSERT_EQ(heard(1), Words{"got old=1"});
  hand_->let_go();
  auto rest = heard(52);
  EXPECT_EQ(std::count(rest.begin(), rest.end(), "got a=1"), 1);
  EXPECT_EQ(std::count(rest.begin(), rest.end(), "status"), 1);
  EXPECT_EQ(std::count_if(rest.begin(), rest.end(),
                          [](const auto& word) { return word.starts_with("kept"); }),
            50);
  ASSERT_EQ(hand_->stored.size(), 2U) << "what came meanwhile was one transaction";
  EXPECT_EQ(hand_->stored[1].kept.size(), 49U);
}

// Many remarks at once are few writes of the status, and the last one tells of all.
TEST_F(ServerTest, WritesTheStatusSeldomForRemarks) {
  const os::Fd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(watch.get(), folder_.path().c_str(), IN_MOVED_TO), 0);
  hand_->let_go();
  const std::vector<std::shared_ptr<io::Connection>> ranks{connect(), connect()};
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    ranks[rank]->send(wire::Register{.job = "job",
                                     .node_id = cat(rank),
                                     .incarnation = rank + 1,
                                     .host = "host",
                                     .pid = 1,
                                     .memory = "memory"});
  }
  heard(2);
  const auto remark = [&](const std::string& what) {
    ranks[0]->send(wire::Remark{{.kind = wire::Reason::Kind::kReplicas, .detail = what}});
  };
  std::size_t writes = 0;
  // Whether the file tells of this remark by and by.
  const auto is_told = [&](const std::string& what) {
    for (int tries = 0; tries < 600; ++tries) {
      alignas(inotify_event) char events[4096];
      for (ssize_t got = 0; (got = ::read(watch.get(), events, sizeof events)) > 0;) {
        for (ssize_t at = 0; at < got; ++writes) {
          at += static_cast<ssize_t>(sizeof(inotify_event)) +
                reinterpret_cast<const inotify_event*>(events + at)->len;
        }
      }
      const auto kept = os::read_file(folder_ / kLastStatus);
      if (kept && kept->find(what) != std::string::npos) return true;
      loop_.after(std::chrono::milliseconds(100), [this] { loop_.stop(); });
      loop_.run();
    }
    return false;
  };
  remark("the first");
  ASSERT_TRUE(is_told("the first"));
  for (int i = 0; i < 50; ++i) remark(cat("no. ", i));
  remark("the last");
  ASSERT_TRUE(is_told("the last"));
  EXPECT_LT(writes, 25U);
}

}  // namespace
}  // namespace holdfast::runtime
