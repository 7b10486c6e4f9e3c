#include "os/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "base/assert.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/process.h"
#include "os/slice.h"

namespace holdfast::os {
namespace {

// By number. glibc tells them since 2.32, and a wheel may meet an older one.
constexpr std::array kSignals{"0",      "HUP",  "INT",    "QUIT", "ILL",   "TRAP", "ABRT", "BUS",
                              "FPE",    "KILL", "USR1",   "SEGV", "USR2",  "PIPE", "ALRM", "TERM",
                              "STKFLT", "CHLD", "CONT",   "STOP", "TSTP",  "TTIN", "TTOU", "URG",
                              "XCPU",   "XFSZ", "VTALRM", "PROF", "WINCH", "POLL", "PWR",  "SYS"};

enum class Stage : int { kDescriptors, kPriority, kProgram };

// What the child tells its parent when it can not become the program.
struct Trouble {
  Stage stage = Stage::kProgram;
  int error_number = 0;
};

// All that the child needs. It is made before the child, which shares our memory between vfork()
// and exec. There only async-signal-safe calls that change no memory are allowed.
struct Plan {
  std::vector<char*> argv;
  std::vector<char*> environment;
  std::vector<Inherited> inherit;  // `from` replaced by the copy that no target can overwrite.
  int null = -1;
  int output = -1;
  int trouble = -1;
  int lowest_copy = 0;  // Above every number that the child will have.
  pid_t parent = 0;
};

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void give_up(const Plan& plan, Stage stage) {
  const Trouble trouble{stage, errno};
  (void)!::write(plan.trouble, &trouble, sizeof(trouble));
  ::_exit(127);
}

void default_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Gives the child its descriptors. Exec closes all others.
bool place_descriptors(const Plan& plan) {
  // For descriptors that we were given ourselves: our own are CLOEXEC. Old kernels lack this call.
  (void)::syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
  if (::dup2(plan.null, STDIN_FILENO) < 0) return false;
  if (plan.output >= 0) {
    if (::dup2(plan.output, STDOUT_FILENO) < 0 || ::dup2(plan.output, STDERR_FILENO) < 0)
      return false;
  }
  return std::all_of(plan.inherit.begin(), plan.inherit.end(),
                     [](const Inherited& pair) { return ::dup2(pair.from, pair.as) >= 0; });
}

// Call it when the child has become its program. We wait for that, and an idle child would get
// there only on a free processor.
bool set_idle(pid_t child) {
  const sched_param parameters{};
  return ::sched_setscheduler(child, SCHED_IDLE, &parameters) == 0 || errno == ESRCH;
}

[[noreturn]] void be_the_child(const Plan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If the parent died before that call, the signal would never come.
  if (::getppid() != plan.parent) ::_exit(127);
  ::setpgid(0, 0);
  default_signals();
  take_usual_slice();  // The program does not inherit our short slice.
  if (!place_descriptors(plan)) give_up(plan, Stage::kDescriptors);
  ::execve(plan.argv.front(), plan.argv.data(), plan.environment.data());
  give_up(plan, Stage::kProgram);
}

// vfork() costs the same however large our memory is. No signal handler may run in the child, since
// it would run in our memory. The function is not inlined, so that the child can change no variable
// of the caller.
[[gnu::noinline]] pid_t start(const Plan& plan) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::vfork();
  if (pid == 0) be_the_child(plan);
  const int error_number = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error_number;
  return pid;
}

// nullopt once the child has become its program, because exec closes the pipe. A signal that
// interrupts the read is no answer.
std::optional<Trouble> trouble_from(int fd) {
  Trouble trouble;
  ssize_t got = 0;
  do {
    got = ::read(fd, &trouble, sizeof(trouble));
  } while (got < 0 && errno == EINTR);
  return got > 0 ? std::optional(trouble) : std::nullopt;
}

Error explain(const std::string& cannot, const Trouble& trouble) {
  switch (trouble.stage) {
    case Stage::kDescriptors:
      return system_error(cat(cannot, ": handing over its descriptors"), trouble.error_number);
    case Stage::kPriority:
      return system_error(cat(cannot, ": setting its priority"), trouble.error_number);
    case Stage::kProgram:
      break;
  }
  return no_task(cannot, trouble.error_number);
}

// If our shell ignored SIGCHLD, so do we, and the kernel would forget how our children ended.
void stop_ignoring_children() {
  struct sigaction action {};
  if (::sigaction(SIGCHLD, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) return;
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, nullptr);
}

constexpr int kLeastPriority = 19;

// For a child that someone else has reaped.
constexpr Exit kUnknown{255, 0};

// How a child has ended. nullopt: it still runs, and `flags` do not say to wait.
std::optional<Exit> end_of(int pidfd, int flags) {
  siginfo_t info{};
  int result = 0;
  do {
    result = ::waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | flags);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return kUnknown;
  if (info.si_pid == 0) return std::nullopt;
  if (info.si_code == CLD_EXITED) return Exit{info.si_status, 0};
  return Exit{0, info.si_status};
}

}  // namespace

Result<Child> spawn(const SpawnOptions& options) {
  HF_ASSERT(!options.argv.empty());
  stop_ignoring_children();
  Plan plan{pointers_to(options.argv), pointers_to(options.environment), {}};
  plan.parent = ::getpid();
  plan.lowest_copy = 3;
  for (const auto& pair : options.inherit) {
    HF_ASSERT(pair.as >= 3);
    plan.lowest_copy = std::max(plan.lowest_copy, pair.as + 1);
  }

  std::vector<Fd> copies;
  // Above every target number, so that no dup2() destroys what a later one needs.
  const auto keep = [&](int fd, int& place) -> Status {
    place = copies.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, plan.lowest_copy)).get();
    if (place >= 0) return {};
    return system_error(cat("cannot hand the descriptor ", fd, " to a child"), errno);
  };
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return system_error("cannot open /dev/null", errno);
  if (const auto kept = keep(null.get(), plan.null); !kept) return kept.error();
  if (!options.output.empty()) {
    const Fd output(
        ::open(options.output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!output)
      return system_error(cat("cannot open ", options.output, " for a child's output"), errno);
    if (const auto kept = keep(output.get(), plan.output); !kept) return kept.error();
  }
  for (Inherited pair : options.inherit) {
    if (const auto kept = keep(pair.from, pair.from); !kept) return kept.error();
    plan.inherit.push_back(pair);
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("cannot make a pipe", errno);
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  if (const auto kept = keep(writing.get(), plan.trouble); !kept) return kept.error();

  Child child;
  const std::string cannot = cat("cannot start ", options.argv.front());
  child.pid = start(plan);
  if (child.pid < 0) return no_task(cannot, errno);
  child.pidfd = open_process(child.pid);
  const int no_pidfd = child.pidfd ? 0 : errno;
  copies.clear();
  writing.reset();
  auto trouble = trouble_from(reading.get());
  if (!trouble && options.idle && !set_idle(child.pid)) {
    trouble = Trouble{Stage::kPriority, errno};
    ::kill(child.pid, SIGKILL);
  }
  if (!trouble && child.pidfd) return child;
  if (!trouble) ::kill(child.pid, SIGKILL);
  while (::waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) continue;
  if (!trouble) return system_error(cat("cannot watch ", options.argv.front()), no_pidfd);
  return explain(cannot, *trouble);
}

std::string describe(const Exit& exit) {
  if (exit.signal == 0) return cat("exited with code ", exit.code);
  const auto number = static_cast<std::size_t>(exit.signal);
  if (number >= kSignals.size()) return cat("was killed by signal ", exit.signal);
  // A process that meets such a limit ends without a word.
  const char* why = exit.signal == SIGXFSZ   ? ": a file grew beyond the limit of `ulimit -f`"
                    : exit.signal == SIGXCPU ? ": its processor time met the limit of `ulimit -t`"
                                             : "";
  return cat("was killed by signal ", exit.signal, " (SIG", kSignals[number], why, ")");
}

std::optional<Exit> ended(int pidfd) {
  return end_of(pidfd, WNOHANG | WNOWAIT);
}

void reap_later(Fd pidfd) {
  try {
    std::thread([child = std::move(pidfd)] {
      (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(this_thread()), kLeastPriority);
      (void)end_of(child.get(), 0);
    }).detach();
  } catch (const std::system_error&) {  // The system has no thread left: its end will reap it.
  }
}

Result<Exit> wait_for(int pidfd) {
  const auto exit = end_of(pidfd, 0);
  HF_ASSERT(exit.has_value());
  return *exit;
}

}  // namespace holdfast::os
