// Real processes, real SIGKILLs: whatever dies, a job of toys ends with the bytes of an undisturbed
// run. HOLDFAST_TEST_SEED repeats the instants of a run as far as the machine allows.
#include "runtime/worker/session.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/text.h"
#include "os/files.h"
#include "os/process.h"
#include "os/spawn.h"
#include "os/testing.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr int kScheduler = -1;  // As Strike::victim.
constexpr int kSteps = 1500;
using Files = std::map<std::string, std::string>;

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* given = std::getenv("HOLDFAST_TEST_SEED");
    const std::uint64_t s = given != nullptr ? std::stoull(given) : 1;
    std::printf("HOLDFAST_TEST_SEED=%ju\n", static_cast<std::uintmax_t>(s));
    return s;
  }();
  return value;
}

// Polls until `so` is true; false after half a minute.
bool comes(const std::function<bool()>& so) {
  for (int i = 0; i < 6'000 && !so(); ++i) std::this_thread::sleep_for(5ms);
  return so();
}

// The last number after `key` in a trace.
std::optional<long> last_number(const std::string& text, const std::string& key) {
  const auto at = text.rfind(key);
  if (at == std::string::npos) return std::nullopt;
  return std::atol(text.c_str() + at + key.size());
}

// One job of toys under msrun, seen through its traces.
class ToyJob {
 public:
  ToyJob(int workers, int spares, const std::string& optimizer, int loses = 0,
         bool same_private = false) {
    static int number = 0;
    name_ = cat("session-test-", ::getpid(), "-", ++number);
    folder_ = fs::temp_directory_path() / name_;
    fs::create_directories(folder_ / "out");
    os::SpawnOptions options;
    options.argv = {MSRUN,
                    cat("--worker_num=", workers),
                    cat("--local_worker_num=", workers),
                    cat("--master_port=", os::free_port()),
                    cat("--log_dir=", (folder_ / "log").string()),
                    "--join=True",
                    "--max_restarts=10",
                    cat("--spares=", spares),
                    TOY,
                    "--steps",
                    cat(kSteps),
                    "--elements",
                    "20000",
                    "--pause",
                    "500",
                    "--optimizer",
                    optimizer,
                    "--loses",
                    cat(loses),
                    "--private",
                    same_private ? "same" : "own",
                    "--out",
                    (folder_ / "out").string()};
    for (char** e = environ; *e != nullptr; ++e) options.environment.emplace_back(*e);
    options.environment.push_back(cat("HOLDFAST_JOB=", name_));
    options.environment.push_back(cat("HOLDFAST_TRACE=", (folder_ / "trace").string()));
    options.output = folder_ / "msrun.txt";
    auto child = os::spawn(options);
    EXPECT_TRUE(child) << child.error().what;
    child_ = *std::move(child);
  }

  ~ToyJob() {
    if (!ended_) {
      ::kill(child_.pid, SIGKILL);
      (void)os::wait_for(child_.pidfd.get());
    }
    fs::remove_all(folder_);
  }

  // The newest step that any rank made.
  long newest_step() {
    long newest = 0;
    for (const auto& [path, text] : traces("worker-")) {
      const auto at = text.rfind("\"event\":\"step\"");
      if (at == std::string::npos) continue;
      newest = std::max(newest, last_number(text.substr(at), "\"step\":").value_or(0));
    }
    return newest;
  }

  // Waits until `steps` more steps are made. False if that takes more than a minute.
  bool runs_on(long steps) {
    const long goal = newest_step() + steps;
    for (int i = 0; i < 30'000 && newest_step() < goal; ++i) std::this_thread::sleep_for(2ms);
    return newest_step() >= goal;
  }

  // The process that is this rank, or the scheduler, just now; 0: none.
  pid_t pid_of(int part) {
    for (const auto& [path, text] : traces(part == kScheduler ? "scheduler-" : "worker-")) {
      if (part != kScheduler && last_number(text, "\"rank\":") != part) continue;
      const auto pid = static_cast<pid_t>(*last_number(path, "-"));
      const auto stat = os::read_file(cat("/proc/", pid, "/stat"));
      if (stat && stat->find(") Z") == std::string::npos) return pid;
    }
    return 0;
  }

  bool kill(int victim, int signal) {
    const pid_t pid = pid_of(victim);
    return pid != 0 && ::kill(pid, signal) == 0;
  }

  // How often a rank was found to have lost pages.
  int count_losses() {
    int count = 0;
    for (const auto& [path, text] : traces("scheduler-")) {
      const std::string wanted = "\"event\":\"remark\"";
      for (auto at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
        ++count;
      }
    }
    return count;
  }

  // How many events of this name the process has written into its trace.
  int count_traced(pid_t pid, const std::string& event) {
    int count = 0;
    for (const auto& [path, text] : traces("worker-")) {
      if (last_number(path, "-") != pid) continue;
      const std::string wanted = cat("\"event\":\"", event, "\"");
      for (auto at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
        ++count;
      }
    }
    return count;
  }

  // The files that the ranks wrote at the end.
  Files result() {
    const auto exit = os::wait_for(child_.pidfd.get());
    ended_ = true;
    EXPECT_TRUE(exit && exit->shell_code() == 0) << *os::read_file(folder_ / "msrun.txt");
    Files files;
    for (const auto& entry : fs::directory_iterator(folder_ / "out")) {
      files[entry.path().filename()] = *os::read_file(entry.path());
    }
    return files;
  }

 private:
  // Path and content of every trace whose name begins so; newest processes are not told apart.
  Files traces(const std::string& role) {
    Files found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_ / "trace", error)) {
      if (!entry.path().filename().string().starts_with(role)) continue;
      if (auto text = os::read_file(entry.path())) found[entry.path().stem()] = *std::move(text);
    }
    return found;
  }

  std::string name_;
  fs::path folder_;
  os::Child child_;
  bool ended_ = false;
};

const Files& undisturbed(int workers, const std::string& optimizer, bool same_private = false) {
  static std::map<std::tuple<int, std::string, bool>, Files> known;
  auto [entry, fresh] = known.try_emplace({workers, optimizer, same_private});
  if (fresh) entry->second = ToyJob(workers, 0, optimizer, 0, same_private).result();
  return entry->second;
}

struct Strike {
  int victim = 0;
  int soon_us = -1;  // The longest time since the strike before; -1: comes after some more steps.
  int signal = SIGKILL;
};

void expect_same_bytes(int workers, int spares, const std::vector<Strike>& strikes,
                       const std::string& optimizer = "momentum", int loses = 0,
                       bool same_private = false) {
  const Files& expected = undisturbed(workers, optimizer, same_private);
  ASSERT_EQ(expected.size(), static_cast<std::size_t>(workers));
  Prng prng(derive(seed(), workers, spares, strikes.size()));
  ToyJob job(workers, spares, optimizer, loses, same_private);
  for (const auto& strike : strikes) {
    if (strike.soon_us < 0) {
      ASSERT_TRUE(job.runs_on(5 + static_cast<long>(prng.below(20)))) << "the job stands still";
      // No step waits for a scheduler that is being replaced.
      ASSERT_TRUE(comes([&] { return job.pid_of(strike.victim) != 0; })) << strike.victim;
    }
    const std::uint64_t most_us = strike.soon_us < 0 ? 3000 : std::uint64_t(strike.soon_us);
    std::this_thread::sleep_for(std::chrono::microseconds(prng.below(most_us + 1)));
    // During a recovery the victim of a second strike may have no process yet.
    const bool killed = job.kill(strike.victim, strike.signal);
    EXPECT_TRUE(killed || strike.soon_us >= 0) << "victim " << strike.victim << " is not alive";
  }
  EXPECT_TRUE(job.result() == expected) << "the final bytes differ";
  EXPECT_GE(job.count_losses(), loses / 2);
}

TEST(Session, KeepsItsBitsWhenAnyRankOfFourDies) {
  expect_same_bytes(4, 0, {{1}, {0}, {3}, {2}, {0}});
}

TEST(Session, KeepsItsBitsWhenEitherRankOfTwoDies) {
  expect_same_bytes(2, 0, {{0}, {1}, {0}}, "adam");
}

TEST(Session, KeepsItsBitsWhenTheOnlyRankDies) {
  expect_same_bytes(1, 0, {{0}, {0}, {0}}, "adamw");
}

TEST(Session, KeepsItsBitsWhenTwoDieAtOnce) {
  expect_same_bytes(4, 0, {{0}, {2, 0}, {1}, {3, 0}}, "sgd");
}

TEST(Session, KeepsItsBitsWhenAllDieAtOnce) {
  expect_same_bytes(4, 0, {{0}, {1, 0}, {2, 0}, {3, 0}});
}

TEST(Session, KeepsItsBitsWhenSparesTakeOver) {
  expect_same_bytes(4, 2, {{0}, {3}, {1, 0}, {2}});
}

TEST(Session, KeepsItsBitsWhenAnotherDiesDuringTheRecovery) {
  expect_same_bytes(4, 0, {{1}, {2, 15'000}, {0}, {3, 15'000}, {2}, {2, 60'000}});
}

// A stopped process is ended by its agent wherever it stands, in the midst of its update too.
TEST(Session, KeepsItsBitsWhenSomeAreStopped) {
  expect_same_bytes(
      4, 1, {{1, -1, SIGSTOP}, {0, -1, SIGSTOP}, {kScheduler, -1, SIGSTOP}, {3, -1, SIGSTOP}});
}

// In the midst of forward passes, sums, stages and updates.
TEST(Session, KeepsItsBitsWhenPagesAreLost) {
  expect_same_bytes(2, 0, {}, "adam", 60);
}

TEST(Session, KeepsItsBitsWhenPagesOfPrivateBytesAreLostThatAllHaveAlike) {
  expect_same_bytes(2, 0, {}, "sgd", 60, true);
}

TEST(Session, KeepsItsBitsWhenPagesAreLostAndRanksDie) {
  expect_same_bytes(3, 1, {{1}, {0}, {1}, {2}, {kScheduler}, {1}}, "momentum", 40);
}

// A process's first thread, here the one that trains, kept from running; its other threads go on.
class Held {
 public:
  explicit Held(pid_t pid) : pid_(pid) {
    held_ = ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 &&
            ::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr) == 0 &&
            ::waitpid(pid, nullptr, __WALL) == pid;
  }
  ~Held() { let_go(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  [[nodiscard]] explicit operator bool() const { return held_; }
  void let_go() {
    if (std::exchange(held_, false)) (void)::ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, __WALL) == pid_) {
    }
    held_ = false;
  }

 private:
  pid_t pid_;
  bool held_ = false;
};

// A sleeping thread gets a core only when the others leave it one. The recovery need not wait for
// that.
TEST(Session, ARankThatWaitsForOthersCountsAsParkedBeforeItRunsAgain) {
  const Files expected = undisturbed(2, "momentum");
  ToyJob job(2, 0, "momentum");
  ASSERT_TRUE(job.runs_on(20));
  const pid_t waiting = job.pid_of(0);
  const pid_t held = job.pid_of(1);
  ASSERT_TRUE(waiting != 0 && held != 0);
  const std::string call_path = cat("/proc/", waiting, "/task/", waiting, "/syscall");
  if (!os::read_file(call_path)) GTEST_SKIP() << "no process may be looked into here";
  Held second(held);
  if (!second) GTEST_SKIP() << "no process may trace another one here";
  int looks = 0;  // Looks in a row that found the thread in that call.
  ASSERT_TRUE(comes([&] {
    const auto call = os::read_file(call_path);
    looks = call && std::atol(call->c_str()) == SYS_futex ? looks + 1 : 0;
    return looks > 20;
  }));
  Held first(waiting);
  ASSERT_TRUE(first);
  ASSERT_EQ(job.count_traced(waiting, "parked"), 1);  // That was when it joined.
  second.kill();
  EXPECT_TRUE(comes([&] { return job.count_traced(waiting, "stop") == 1; }));
  EXPECT_TRUE(comes([&] { return job.count_traced(waiting, "parked") == 2; }));
  first.let_go();
  EXPECT_TRUE(job.result() == expected) << "the final bytes differ";
}

TEST(Session, KeepsItsBitsWhenTheSchedulerDies) {
  expect_same_bytes(4, 0, {{kScheduler}, {kScheduler}});
}

TEST(Session, KeepsItsBitsWhenTheSchedulerDiesInMidRecovery) {
  expect_same_bytes(4, 1, {{1}, {kScheduler, 10'000}, {0}, {kScheduler, 10'000}});
}

}  // namespace
}  // namespace holdfast::runtime
