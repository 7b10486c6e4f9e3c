// A process's access to the job's key-values, against a real scheduler.
#include "runtime/worker/key_values.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "base/text.h"
#include "os/process.h"
#include "os/spawn.h"
#include "os/testing.h"
#include "runtime/jobs/scheduler_link.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLong = 60s;

class KeyValuesTest : public ::testing::Test {
 protected:
  ~KeyValuesTest() override { end_scheduler(SIGKILL); }

  config::Settings settings(Duration patience = kLong) const {
    config::Settings s;
    s.role = config::Role::kWorker;
    s.job = job_;
    s.sched_host = "127.0.0.1";
    s.sched_port = port_;
    s.scheduler_timeout = patience;
    s.rehearse = -1;
    return s;
  }

  // Starts a scheduler as by hand. `again`: it takes its journal back, and can be restarted.
  void start_scheduler(bool again = true) {
    os::SpawnOptions options;
    options.argv = {TOY};
    options.environment = {"HOLDFAST_JOB=" + job_,
                           cat("MS_SCHED_PORT=", port_),
                           "MS_SCHED_HOST=127.0.0.1",
                           "MS_ROLE=MS_SCHED",
                           "MS_WORKER_NUM=1",
                           again ? "MS_ENABLE_RECOVERY=1" : "MS_ENABLE_RECOVERY=0",
                           cat("MS_RECOVERY_PATH=", folder_.path())};
    options.output = folder_ / "scheduler.txt";
    auto child = os::spawn(options);
    ASSERT_TRUE(child) << child.error().what;
    scheduler_ = *std::move(child);
  }
  void end_scheduler(int signal) {
    if (scheduler_.pid <= 0) return;
    ::kill(scheduler_.pid, signal);
    (void)os::wait_for(scheduler_.pidfd.get());
    scheduler_ = {};
  }

  static std::string value_of(const Result<std::optional<wire::KeyValue>>& got) {
    if (!got) return got.error().what;
    return *got ? cat((*got)->key, '=', (*got)->value) : "nothing";
  }

 private:
  const std::string job_ = cat("key-values-test-", ::getpid());
  const os::TemporaryFolder folder_;
  const std::uint16_t port_ = os::free_port();
  os::Child scheduler_{};
};

TEST_F(KeyValuesTest, TheFirstValueStaysAndAllAreToldOfIt) {
  start_scheduler();
  KeyValues one(settings());
  KeyValues other(settings());
  EXPECT_EQ(value_of(one.get({"a"}, {})), "nothing");
  EXPECT_EQ(value_of(one.get({"a"}, 1ms)), "nothing");
  ASSERT_TRUE(one.put("a", "1"));
  ASSERT_TRUE(other.put("a", "2"));
  EXPECT_EQ(value_of(other.get({"b", "a"}, {})), "a=1");
  auto waits = std::async(std::launch::async, [&] { return other.get({"c", "b"}, kLong); });
  std::promise<void> seen;
  one.watch("b", [&] { seen.set_value(); });
  const std::string big(wire::kMaxValueBytes, 'v');
  ASSERT_TRUE(one.put("b", big));
  EXPECT_EQ(value_of(waits.get()), "b=" + big);
  EXPECT_EQ(seen.get_future().wait_for(kLong), std::future_status::ready);
}

TEST_F(KeyValuesTest, NobodyElseSeesWhatARehearsalWrites) {
  start_scheduler();
  KeyValues member(settings());
  config::Settings other = settings();
  other.rehearse = 0;
  KeyValues rehearsal(other);
  ASSERT_TRUE(member.put("a", "1"));
  ASSERT_TRUE(rehearsal.put("a", "2"));  // No change: the key has a value already.
  ASSERT_TRUE(rehearsal.put("b", "3"));
  const auto set = rehearsal.set("a", "4", 1);
  ASSERT_TRUE(set && set->is_set);
  EXPECT_EQ(value_of(rehearsal.get({"a"}, {})), "a=4");
  EXPECT_EQ(value_of(rehearsal.get({"c", "b"}, kLong)), "b=3");
  EXPECT_FALSE(rehearsal.set("a", "5", 1)->is_set);
  EXPECT_EQ(value_of(member.get({"a"}, {})), "a=1");
  EXPECT_EQ(value_of(member.get({"b"}, {})), "nothing");
  EXPECT_EQ(value_of(rehearsal.get({"a"}, 1ms, 2)), "nothing");
}

TEST_F(KeyValuesTest, ChangesOfTwoProcessesAreAllMadeThoughTheSchedulerDies) {
  start_scheduler();
  constexpr int kEach = 60;
  // Each thread adds letters to the value, one by one; each time it tries until it meets the
  // expected version.
  const auto add_all = [&](const std::string& letter) {
    KeyValues values(settings());
    for (int added = 0; added < kEach;) {
      const auto got = values.get({"a"}, {});
      ASSERT_TRUE(got) << got.error().what;
      const wire::KeyValue former = got->value_or(wire::KeyValue{"a", "", 0});
      const auto set = values.set("a", former.value + letter, former.version);
      ASSERT_TRUE(set) << set.error().what;
      if (set->is_set) {
        ASSERT_EQ(set->version, former.version + 1);
        ++added;
      }
    }
  };
  std::thread one([&] { add_all("x"); });
  std::thread other([&] { add_all("y"); });
  KeyValues third(settings());
  // Versions after which the scheduler is killed.
  for (const wire::KeyVersion seen : {20U, 50U, 80U}) {
    const auto newer = third.get({"a"}, kLong, seen);
    ASSERT_TRUE(newer && *newer);
    EXPECT_GT((*newer)->version, seen);
    end_scheduler(SIGKILL);
    start_scheduler();
  }
  one.join();
  other.join();
  const auto last = third.get({"a"}, {});
  ASSERT_TRUE(last && *last);
  const std::string& text = (*last)->value;
  EXPECT_EQ((*last)->version, 2U * kEach);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), kEach);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'y'), kEach);
}

TEST_F(KeyValuesTest, WhoGivesUpDoesNotWait) {
  start_scheduler();
  KeyValues one(settings());
  int asked = 0;
  const auto got = one.get({"a"}, kLong, 0, [&] { return ++asked == 3; });
  EXPECT_EQ(value_of(got), "nothing");
  EXPECT_EQ(asked, 3);
}

TEST_F(KeyValuesTest, TheSchedulersDeathIsOutlasted) {
  KeyValues values(settings());
  auto early = std::async(std::launch::async, [&] { return values.put("a", "1"); });
  start_scheduler();  // After put() was called.
  ASSERT_TRUE(early.get());
  auto waits = std::async(std::launch::async, [&] { return values.get({"b"}, kLong); });
  // By now the scheduler has the other get(), too.
  EXPECT_EQ(value_of(values.get({"b"}, 1ms)), "nothing");
  end_scheduler(SIGKILL);
  start_scheduler();
  EXPECT_EQ(value_of(values.get({"a"}, {})), "a=1") << "it was durable";
  KeyValues other(settings());
  ASSERT_TRUE(other.put("b", "2"));
  EXPECT_EQ(value_of(waits.get()), "b=2") << "it was asked for again";
}

TEST_F(KeyValuesTest, AWaitOutlastsEveryDeathThatIsShorterThanTheTimeout) {
  constexpr Duration kPatience = 3s;
  start_scheduler();
  KeyValues values(settings(kPatience));
  KeyValues other(settings());
  auto waits = std::async(std::launch::async, [&] { return values.get({"b"}, kLong); });
  // The get() is answered by nothing before the first death, which comes later than the timeout.
  EXPECT_EQ(value_of(other.get({"none"}, kPatience + 500ms)), "nothing");
  for (const std::string key : {"first", "second"}) {
    std::promise<void> seen;
    values.watch(key, [&] { seen.set_value(); });
    end_scheduler(SIGKILL);
    start_scheduler();
    ASSERT_TRUE(other.put(key, ""));
    ASSERT_EQ(seen.get_future().wait_for(kLong), std::future_status::ready) << key;
  }
  ASSERT_TRUE(other.put("b", "2"));
  EXPECT_EQ(value_of(waits.get()), "b=2");
}

TEST_F(KeyValuesTest, ALongerOneEndsAGetButNoWatch) {
  start_scheduler();
  KeyValues values(settings(500ms));
  std::promise<void> seen;
  values.watch("a", [&] { seen.set_value(); });
  auto waits = std::async(std::launch::async, [&] { return values.get({"b"}, kLong); });
  EXPECT_EQ(value_of(values.get({"b"}, {})), "nothing");  // After this there is a connection.
  end_scheduler(SIGKILL);
  EXPECT_NE(value_of(waits.get()).find("within 0.5 s"), std::string::npos);
  start_scheduler();
  KeyValues other(settings());
  ASSERT_TRUE(other.put("a", "1"));
  EXPECT_EQ(seen.get_future().wait_for(kLong), std::future_status::ready);
}

TEST_F(KeyValuesTest, EveryWaitEnds) {
  KeyValues values(settings(100ms));
  for (const Status& put : {values.put("a", "1"), values.put("a", "1")}) {
    ASSERT_FALSE(put);
    EXPECT_NE(put.error().what.find("no scheduler answers at 127.0.0.1"), std::string::npos);
  }
  EXPECT_NE(value_of(values.get({"a"}, kLong)).find("no scheduler"), std::string::npos);
  EXPECT_NE(value_of(values.get({"a"}, {})).find("no scheduler"), std::string::npos);
}

TEST_F(KeyValuesTest, WhoWaitsHearsOfTheJobsEndAndWhoAsksLaterToo) {
  start_scheduler(false);
  KeyValues values(settings());
  KeyValues idle(settings());
  ASSERT_TRUE(values.put("a", "1"));
  ASSERT_TRUE(idle.put("a", "1"));
  auto waits = std::async(std::launch::async, [&] { return values.get({"b"}, kLong); });
  end_scheduler(SIGTERM);
  EXPECT_EQ(value_of(waits.get()), "the scheduler was interrupted by signal 15");
  EXPECT_EQ(value_of(idle.get({"b"}, {})), "the scheduler was interrupted by signal 15");
  EXPECT_FALSE(values.put("a", "1")) << "that is final";
}

TEST_F(KeyValuesTest, WhoSaysWhatTheSchedulerCanNotReadIsRefusedByName) {
  start_scheduler();
  const auto here = settings();
  io::Loop loop;
  std::optional<wire::Message> heard;
  std::function<void()> speak;
  SchedulerLink link(loop, here, wire::PeerKind::kWorker,
                     {.on_up = [&] { speak(); },
                      .on_message =
                          [&](wire::Message message) {
                            heard = std::move(message);
                            link.retire();
                            loop.stop();
                          }});
  speak = [&] { link.send(wire::Waiting{{.kind = static_cast<wire::Reason::Kind>(250)}}); };
  link.open();
  loop.run();
  ASSERT_TRUE(heard && std::holds_alternative<wire::Refused>(*heard));
  const auto& why = std::get<wire::Refused>(*heard).reason;
  EXPECT_EQ(why.kind, wire::Reason::Kind::kUnreadable);
  EXPECT_NE(why.detail.find("a malformed Waiting; use the same version of Holdfast on all hosts"),
            std::string::npos)
      << why.detail;
}

TEST_F(KeyValuesTest, WhatIsTooLongIsRefusedByName) {
  KeyValues values(settings());
  EXPECT_EQ(values.put(std::string(257, 'k'), "").error().what,
            "a key has 257 bytes; at most are 256");
  EXPECT_EQ(values.put("k", std::string(wire::kMaxValueBytes + 1, 'v')).error().what,
            "the value of 'k' has 16776193 bytes; at most are 16776192");
  EXPECT_EQ(values.put("holdfast.succeeded", "").error().what,
            "the key 'holdfast.succeeded' is the scheduler's; use another one");
  EXPECT_EQ(value_of(values.get({}, {})), "asked for 0 keys; 1 to 16 are allowed");
  EXPECT_EQ(value_of(values.get(std::vector<std::string>(17, "k"), {})),
            "asked for 17 keys; 1 to 16 are allowed");
}

TEST_F(KeyValuesTest, MoreCallsThanTheSchedulerTakesAreRefused) {
  KeyValues values(settings());
  for (int i = 0; i < 900; ++i) values.watch(cat(i), [] {});
  EXPECT_EQ(value_of(values.get({"a"}, kLong)), "900 calls wait already, which is the most");
}

TEST_F(KeyValuesTest, AForkedChildIsRefused) {
  start_scheduler();
  KeyValues values(settings());
  ASSERT_TRUE(values.put("a", "1"));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = !values.put("a", "1") && !values.get({"a"}, {});
    values.~KeyValues();
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(value_of(values.get({"a"}, {})), "a=1");
}

}  // namespace
}  // namespace holdfast::runtime
