#include "os/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "os/program.h"
#include "os/slice.h"
#include "os/spawn.h"
#include "os/testing.h"

namespace holdfast::os {
namespace {

using Clock = std::chrono::steady_clock;

SpawnOptions shell(const std::string& script) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

Exit run(const SpawnOptions& options) {
  const auto child = spawn(options);
  EXPECT_TRUE(child) << child.error().what;
  return child ? *wait_for(child->pidfd.get()) : Exit{-1, 0};
}

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
  return {Fd(ends[0]), Fd(ends[1])};
}

// A child that lives until it is killed, and has reached its program.
Child long_lived(SpawnOptions options = {}) {
  options.argv = {"/bin/sleep", "1000"};
  auto child = spawn(options);
  EXPECT_TRUE(child) << child.error().what;
  return std::move(*child);
}

void end(const Child& child) {
  EXPECT_TRUE(send_signal(child.pidfd.get(), SIGKILL));
  EXPECT_EQ(*wait_for(child.pidfd.get()), (Exit{0, SIGKILL}));
}

TEST(Spawn, AChildThatHasEndedIsThereUntilItIsReaped) {
  auto child = spawn({.argv = {"/bin/sh", "-c", "exit 3"}});
  ASSERT_TRUE(child);
  std::optional<Exit> exit;
  while (!(exit = ended(child->pidfd.get()))) std::this_thread::yield();
  EXPECT_EQ(*exit, (Exit{3, 0}));
  EXPECT_EQ(*ended(child->pidfd.get()), (Exit{3, 0}));
  EXPECT_EQ(::kill(child->pid, 0), 0);
  reap_later(std::move(child->pidfd));
  while (::kill(child->pid, 0) == 0) std::this_thread::yield();  // The test's limit ends this.
}

TEST(Spawn, TellsHowAChildEnded) {
  EXPECT_EQ(run(shell("exit 0")), (Exit{0, 0}));
  EXPECT_EQ(run(shell("exit 3")), (Exit{3, 0}));
  EXPECT_EQ(run(shell("kill -TERM $$")), (Exit{0, SIGTERM}));
  EXPECT_EQ((Exit{0, SIGKILL}.shell_code()), 137);
  EXPECT_EQ((Exit{3, 0}.shell_code()), 3);
}

TEST(Spawn, DescribesAnEndInWords) {
  EXPECT_EQ(describe({3, 0}), "exited with code 3");
  EXPECT_EQ(describe({0, SIGKILL}), "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(describe({0, 45}), "was killed by signal 45");
  EXPECT_EQ(describe({0, SIGXFSZ}),
            "was killed by signal 25 (SIGXFSZ: a file grew beyond the limit of `ulimit -f`)");
}

TEST(Spawn, GivesTheChildExactlyTheEnvironment) {
  const TemporaryFolder folder;
  SpawnOptions options;
  options.argv = {"/usr/bin/env"};
  options.environment = {"A=1", "B=two words"};
  options.output = folder / "out";
  EXPECT_EQ(run(options), Exit{});
  EXPECT_EQ(*read_file(folder / "out"), "A=1\nB=two words\n");
}

TEST(Spawn, AppendsBothOutputsToTheFile) {
  const TemporaryFolder folder;
  std::ofstream(folder / "log") << "before\n";
  auto options = shell("echo out; echo error >&2; cat");  // Standard input is empty.
  options.output = folder / "log";
  EXPECT_EQ(run(options), Exit{});
  EXPECT_EQ(*read_file(folder / "log"), "before\nout\nerror\n");
}

TEST(Spawn, NamesAProgramThatCanNotBeStarted) {
  const TemporaryFolder folder;
  SpawnOptions options;
  options.argv = {folder / "nothing"};
  const auto child = spawn(options);
  ASSERT_FALSE(child);
  EXPECT_EQ(child.error().what,
            cat("cannot start ", folder / "nothing", ": No such file or directory"));
  errno = 0;
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a failed start leaves no zombie";
  EXPECT_EQ(errno, ECHILD);
}

TEST(Spawn, HandsDescriptorsOverUnderTheirNewNumbersAndNoOthers) {
  const TemporaryFolder folder;
  std::ofstream(folder / "a") << "A";
  std::ofstream(folder / "b") << "B";
  const Fd a(::open((folder / "a").c_str(), O_RDONLY | O_CLOEXEC));
  const Fd b(::open((folder / "b").c_str(), O_RDONLY | O_CLOEXEC));
  const Fd stray(::open((folder / "a").c_str(), O_RDONLY));  // A descriptor without CLOEXEC.
  auto options = shell(cat("cat <&", a.get(), "; cat <&", b.get(),
                           "; for n in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do"
                           " if [ -e /proc/$$/fd/$n ]; then echo $n; fi; done"));
  options.inherit = {{a.get(), b.get()},
                     {b.get(), a.get()}};  // Swapped: each overwrites the other.
  options.output = folder / "out";
  EXPECT_EQ(run(options), Exit{});
  ASSERT_LT(a.get(), b.get());
  ASSERT_LT(stray.get(), 20);
  EXPECT_EQ(*read_file(folder / "out"), cat("BA0\n1\n2\n", a.get(), '\n', b.get(), '\n'));
}

TEST(Spawn, HandsOverDescriptorsWhoseNewNumbersAreInUseByItsOwn) {
  const TemporaryFolder folder;
  std::ofstream(folder / "a") << "A";
  const Fd a(::open((folder / "a").c_str(), O_RDONLY | O_CLOEXEC));
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto options = shell("cat <&9");
  for (int as = 10; as < 30; ++as) options.inherit.push_back({null.get(), as});
  options.inherit.push_back({a.get(), 9});
  options.output = folder / "out";
  EXPECT_EQ(run(options), Exit{});
  EXPECT_EQ(*read_file(folder / "out"), "A");
}

TEST(Spawn, StartsTheChildWithPlainSignalsInAGroupOfItsOwn) {
  sigset_t usr1;
  ::sigemptyset(&usr1);
  ::sigaddset(&usr1, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  const Child child = long_lived();
  ::signal(SIGPIPE, before);
  ::pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr);
  EXPECT_EQ(::getpgid(child.pid), child.pid);
  const std::string status = *read_file(cat("/proc/", child.pid, "/status"));
  EXPECT_NE(status.find("SigBlk:\t0000000000000000"), std::string::npos) << status;
  EXPECT_NE(status.find("SigIgn:\t0000000000000000"), std::string::npos) << status;
  EXPECT_TRUE(signal_group(child.pid, SIGTERM));
  EXPECT_EQ(*wait_for(child.pidfd.get()), (Exit{0, SIGTERM}));
  EXPECT_TRUE(send_signal(child.pidfd.get(), SIGTERM)) << "gone is no error";
  EXPECT_TRUE(signal_group(child.pid, SIGTERM));
}

TEST(Spawn, SetsThePriority) {
  SpawnOptions options;
  options.idle = true;
  const Child child = long_lived(options);
  EXPECT_EQ(::sched_getscheduler(child.pid), SCHED_IDLE);
  end(child);
}

// When a launcher ends a job, its signal may reach the agent while that starts a process.
TEST(Spawn, IsNotConfusedByASignalThatComesMeanwhile) {
  struct sigaction nothing {};
  struct sigaction before {};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &nothing, &before), 0);  // Without SA_RESTART, as asio's.
  std::atomic<bool> over = false;
  std::thread storm([&over, starter = ::pthread_self()] {
    while (!over) {
      ::pthread_kill(starter, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  for (int i = 0; i < 100; ++i) {
    const auto child = spawn({.argv = {"/bin/sleep", "60"}});
    EXPECT_TRUE(child) << child.error().what;
    if (!child) break;
    EXPECT_TRUE(send_signal(child->pidfd.get(), SIGKILL));
    EXPECT_EQ(wait_for(child->pidfd.get())->signal, SIGKILL);
  }
  over = true;
  storm.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(Spawn, LetsNoChildHaveTheShortSliceOfItsParent) {
  std::thread([] {  // The slice is a thread's own.
    if (!take_short_slice()) GTEST_SKIP() << "this kernel gives no thread a slice of its own";
    const Child child = long_lived();
    EXPECT_FALSE(has_short_slice(child.pid));
    EXPECT_TRUE(has_short_slice());
    std::thread([] { EXPECT_TRUE(has_short_slice()) << "threads inherit it"; }).join();
    end(child);
  })
      .join();
}

TEST(Slice, IsTakenAndGivenBackWithNothingElseChanged) {
  std::thread([] {
    const auto self = static_cast<id_t>(::gettid());
    ASSERT_EQ(::setpriority(PRIO_PROCESS, self, 5), 0);
    if (!take_short_slice()) GTEST_SKIP() << "this kernel gives no thread a slice of its own";
    EXPECT_TRUE(has_short_slice(static_cast<pid_t>(self)));
    take_usual_slice();
    EXPECT_FALSE(has_short_slice());
    EXPECT_EQ(::getpriority(PRIO_PROCESS, self), 5);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
  }).join();
}

TEST(Slice, IsTakenByAllThreadsAndGivenBackByTheOthers) {
  std::atomic<pid_t> other = 0;
  std::atomic<pid_t> excepted = 0;
  std::atomic<bool> over = false;
  const auto sleep = [&over](std::atomic<pid_t>& id) {
    id = ::gettid();
    id.notify_one();
    over.wait(false);
  };
  std::thread first([&] { sleep(other); });
  std::thread second([&] { sleep(excepted); });
  other.wait(0);
  excepted.wait(0);
  take_short_slice_of_all(::getpid());
  const bool possible = has_short_slice();
  EXPECT_EQ(has_short_slice(other), possible);
  EXPECT_EQ(has_short_slice(excepted), possible);
  take_usual_slice_of_others(excepted);
  EXPECT_EQ(has_short_slice(), possible);
  EXPECT_FALSE(has_short_slice(other));
  EXPECT_EQ(has_short_slice(excepted), possible);
  take_usual_slice();
  over = true;
  over.notify_all();
  first.join();
  second.join();
}

TEST(Slice, IsNothingForThreadsThatAreNotOrdinary) {
  std::thread([] {
    const sched_param parameters{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &parameters), 0);
    EXPECT_FALSE(take_short_slice());
    take_usual_slice();
    EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
  }).join();
  EXPECT_FALSE(take_short_slice(-1)) << "there is no such thread";
}

// The test forks a parent, which spawns a child that holds a pipe; SIGKILL to the parent must end
// the child, which shows in the end of the pipe.
TEST(Spawn, LetsNoChildOutliveItsParent) {
  auto [reading, writing] = make_pipe();
  auto [ready, tell] = make_pipe();
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    SpawnOptions options;
    options.argv = {"/bin/sleep", "1000"};
    options.inherit = {{writing.get(), 3}};
    const auto child = spawn(options);
    const char answer = child ? 'y' : 'n';
    writing.reset();
    (void)!::write(tell.get(), &answer, 1);
    ::pause();
    ::_exit(0);
  }
  writing.reset();
  tell.reset();
  char answer = 0;
  ASSERT_EQ(::read(ready.get(), &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  pollfd poller{reading.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&poller, 1, 0), 0) << "the child lives";
  ::kill(parent, SIGKILL);
  EXPECT_EQ(::poll(&poller, 1, 60'000), 1) << "the child outlived its parent by a minute";
  ::waitpid(parent, nullptr, 0);
}

TEST(Process, TellsOneProcessFromALaterOneOfTheSameNumber) {
  const auto ours = start_time(::getpid());
  ASSERT_TRUE(ours);
  EXPECT_TRUE(same_process_alive(::getpid(), *ours));
  EXPECT_FALSE(same_process_alive(::getpid(), *ours + 1));
  const Child child = long_lived();
  const auto theirs = start_time(child.pid);
  ASSERT_TRUE(theirs);
  EXPECT_GE(*theirs, *ours);
  EXPECT_TRUE(same_process_alive(child.pid, *theirs));
  EXPECT_TRUE(send_signal(child.pidfd.get(), SIGKILL));
  pollfd poller{child.pidfd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&poller, 1, 60'000), 1);
  EXPECT_FALSE(same_process_alive(child.pid, *theirs)) << "a zombie is dead";
  EXPECT_EQ(*wait_for(child.pidfd.get()), (Exit{0, SIGKILL}));
  EXPECT_FALSE(start_time(child.pid));
  EXPECT_FALSE(same_process_alive(child.pid, *theirs));
}

TEST(Process, TakesNobodyForDeadWhomItCanNotLookAt) {
  const auto ours = start_time(::getpid());
  ASSERT_TRUE(ours);
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit none{0, usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool seen = start_time(::getpid()).has_value();
  const bool alive = same_process_alive(::getpid(), *ours);
  const bool exiting = is_exiting(::getpid());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_FALSE(seen);
  EXPECT_TRUE(alive);
  EXPECT_FALSE(exiting);
}

TEST(Process, IsStoppedBetweenTwoSignals) {
  const Child child = long_lived();
  EXPECT_FALSE(is_stopped(child.pid));
  siginfo_t info{};
  ASSERT_TRUE(send_signal(child.pidfd.get(), SIGSTOP));
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid), &info, WSTOPPED), 0);
  EXPECT_TRUE(is_stopped(child.pid));
  const auto first = stopped_at(child.pid);
  EXPECT_TRUE(first);
  EXPECT_EQ(stopped_at(child.pid), first);
  ASSERT_TRUE(send_signal(child.pidfd.get(), SIGCONT));
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid), &info, WCONTINUED), 0);
  EXPECT_FALSE(is_stopped(child.pid));
  EXPECT_FALSE(stopped_at(child.pid));
  ASSERT_TRUE(send_signal(child.pidfd.get(), SIGSTOP));
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid), &info, WSTOPPED), 0);
  EXPECT_GT(stopped_at(child.pid), first) << "it ran between";
  ASSERT_TRUE(send_signal(child.pidfd.get(), SIGKILL));
  EXPECT_EQ(*wait_for(child.pidfd.get()), (Exit{0, SIGKILL}));
}

// The forked child of the next test: it has much memory, and threads that write without a pause.
[[noreturn]] void write_for_ever(std::atomic<std::uint64_t>* counters, std::size_t bytes,
                                 int tell) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (std::size_t at = 0; at < bytes; at += 4096) static_cast<char*>(memory)[at] = 1;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([counter = counters + i * 8] {
      while (true) counter->fetch_add(1, std::memory_order_relaxed);
    });
  }
  for (int i = 0; i < 3; ++i) {
    while (counters[i * 8].load() == 0) std::this_thread::yield();
  }
  (void)!::write(tell, "y", 1);
  ::pause();
  ::_exit(0);
}

TEST(Process, IsExitingOnlyWhenNoneOfItsThreadsCanWriteAnyMore) {
#ifdef HOLDFAST_SANITIZED
  constexpr std::size_t kBytes = std::size_t{64} << 20;
#else
  constexpr std::size_t kBytes = std::size_t{1} << 30;
#endif
  auto* counters = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(counters), MAP_FAILED);
  auto [ready, tell] = make_pipe();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) write_for_ever(counters, kBytes, tell.get());
  tell.reset();
  char answer = 0;
  ASSERT_EQ(::read(ready.get(), &answer, 1), 1);
  EXPECT_FALSE(is_exiting(child));

  const auto killed = Clock::now();
  ::kill(child, SIGKILL);
  while (!is_exiting(child)) {
    ASSERT_LT(Clock::now() - killed, std::chrono::seconds(60));
    std::this_thread::yield();
  }
  const auto exiting = Clock::now();
  std::array<std::uint64_t, 3> then{};
  for (std::size_t i = 0; i < 3; ++i) then.at(i) = counters[i * 8].load();
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const auto dead = Clock::now();
  EXPECT_TRUE(is_exiting(child)) << "a zombie";
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GT(then.at(i), 0U);
    EXPECT_EQ(counters[i * 8].load(), then.at(i)) << "thread " << i << " wrote on";
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(is_exiting(child)) << "gone";
  ::munmap(counters, 4096);
  RecordProperty("exiting_after_us", static_cast<int>((exiting - killed).count() / 1000));
  RecordProperty("dead_after_us", static_cast<int>((dead - killed).count() / 1000));
}

TEST(FindProgram, FollowsThePath) {
  const TemporaryFolder folder;
  ASSERT_TRUE(make_directories(folder / "a/tool"));  // A folder of that name does not count.
  ASSERT_TRUE(make_directories(folder / "b"));
  ASSERT_TRUE(make_directories(folder / "c"));
  std::ofstream(folder / "b/tool") << "#!/bin/sh\n";
  std::ofstream(folder / "c/tool") << "#!/bin/sh\n";
  ASSERT_EQ(::chmod((folder / "c/tool").c_str(), 0755), 0);
  const std::string path = cat(folder / "a", ':', folder / "b", ':', folder / "c");
  EXPECT_EQ(*find_program("tool", path), folder / "c/tool");
  EXPECT_EQ(*find_program(folder / "c/tool", ""), folder / "c/tool");
  const auto why = [&](const std::string& name, const std::string& where) {
    const auto found = find_program(name, where);
    return found ? "found" : found.error().what;
  };
  EXPECT_NE(why("tool", folder / "a").find("is a folder"), std::string::npos);
  EXPECT_NE(why("tool", folder / "b").find("not executable"), std::string::npos);
  EXPECT_NE(why(folder / "b/tool", "").find("not executable"), std::string::npos);
  EXPECT_NE(why(folder / "a", path).find("is a folder"), std::string::npos);
  EXPECT_NE(why("tool", "/bin").find("no program 'tool'"), std::string::npos);
  EXPECT_NE(why(folder / "x", path).find("no program"), std::string::npos);
  EXPECT_NE(why("", path), "found");
}

TEST(FindProgram, RefusesAScriptWhoseInterpreterIsMissing) {
  const TemporaryFolder folder;
  const std::string script = folder / "script";
  const auto why = [&](const std::string& first_line) {
    std::ofstream(script) << first_line << "\ntrue\n";
    EXPECT_EQ(::chmod(script.c_str(), 0700), 0);
    const auto found = find_program(script, "");
    return found ? "found" : found.error().what;
  };
  EXPECT_EQ(why("#!/bin/sh"), "found");
  EXPECT_EQ(why("#! /bin/sh -e"), "found");
  EXPECT_EQ(why("#!"), "found");  // The kernel finds the error.
  EXPECT_EQ(why("true"), "found");
  EXPECT_NE(why("#!/no/such/sh -e").find("/no/such/sh,"), std::string::npos);
  EXPECT_NE(why("#!/bin/sh\r").find("line ends of Windows"), std::string::npos);
  EXPECT_NE(why("#!/usr/bin/env sh\r").find("line ends of Windows"), std::string::npos);
}

}  // namespace
}  // namespace holdfast::os
