// nursling: the agent's child that stands for a process which the nursery has forked.
//
//   nursling ADDRESS all|first PYTHON [ARGUMENTS]
//
// The nursery (python/holdfast/_nursery.py) has imported MindSpore once and forks every process of
// the job from itself. The agent needs a child of its own all the same, so it starts a nursling.
// The nursling passes its descriptors, environment and arguments to the nursery, and ends as the
// forked process ends.
//
// If there is no nursery, the nursling starts one in the agent's session: only processes of one
// session may be in one group. If that fails, or if the nursery refuses or is silent, the nursling
// becomes the program itself by exec(), as if there were no nursery. The program never runs twice:
// a forked process begins only when its nursling lets it, which a nursling does once, and never
// after it became the program. "first": the nursery is asked only for processes that replace no
// other.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

extern char** environ;

namespace {

constexpr int kSpareFd = 3;
constexpr int kImportPatienceMs =
    120'000;                              // MindSpore's import takes seconds; on a busy host more.
constexpr int kForkPatienceMs = 1'000;    // A fork takes milliseconds; the nursery may be stopped.
constexpr int kListenPatienceMs = 1'000;  // From bind() to listen() of another nursling.
constexpr int kStatusPatienceMs = 5'000;  // For the status, once the pidfd has told of the end.
constexpr int kEndPatienceMs = 2'000;     // A nursery that is not stopped ends with its agent.
constexpr std::string_view kGrown = "+";  // Ends the name at which it listens once it can fork.

// What the nursery answers. kLeaving comes from the forked process itself.
enum Kind : std::uint32_t { kRefused, kStarted, kEnded, kLeaving };
struct Answer {
  std::uint32_t kind;
  std::int32_t value;  // A pid; a status of wait(); an exit code.
};

// The value of a variable of the environment, which the agent has set. The nursling must not read
// the job's settings otherwise: these are for the forked process.
std::string_view variable(std::string_view name) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with(name) && text.substr(name.size()).starts_with('=')) {
      return text.substr(name.size() + 1);
    }
  }
  return {};
}

[[noreturn]] void become(char** program) {
  ::execv(program[0], program);
  std::fprintf(stderr, "holdfast: cannot start %s: %s\n", program[0], std::strerror(errno));
  ::_exit(127);
}

// Whether the nursery is asked for this process. A scheduler is not forked, since it imports no
// MindSpore; with "first", a process that replaces another is not forked either.
bool is_to_be_asked_for(std::string_view which) {
  if (variable("MS_ROLE") != "MS_WORKER") return false;
  const std::string_view attempt = variable("HOLDFAST_ATTEMPT");
  const bool succeeds = attempt != "1" || !variable("HOLDFAST_SPARE_FD").empty();
  return which == "all" || !succeeds;
}

struct Address {
  sockaddr_un where{};
  socklen_t size = 0;
};

// The abstract socket address of this name (it is no file); nothing if the name is too long.
std::optional<Address> address_of(std::string_view name) {
  Address made;
  made.where.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(made.where.sun_path)) return std::nullopt;
  std::memcpy(&made.where.sun_path[1], name.data(), name.size());  // [0] is 0.
  made.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

struct Nursery {
  int fd = -1;  // -1: there is no nursery of this user.
  int patience_ms = 0;
};

Nursery connect_to(std::string_view name, int patience_ms) {
  const auto address = address_of(name);
  const int fd = address ? ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0) return {};
  // A stopped nursery would block the connection or the request for ever.
  const timeval limit{patience_ms / 1000, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address->where), address->size) == 0 &&
      ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid()) {
    return {fd, patience_ms};
  }
  ::close(fd);
  return {};
}

// Returns the listening socket; -1: another process has the name.
int listen_at(std::string_view name) {
  const auto address = address_of(name);
  const int fd = address ? ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0) return -1;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address->where), address->size) == 0 &&
      ::listen(fd, 128) == 0) {
    return fd;
  }
  ::close(fd);
  return -1;
}

[[noreturn]] void become_nursery(int listener, const char* python) {
  ::setpgid(0, 0);  // A signal to the nursling's group must not end the nursery.
  const sched_param parameters{};
  ::sched_setscheduler(0, SCHED_OTHER, &parameters);  // A spare's nursling has idle priority.
  if (!variable("HOLDFAST_SPARE_FD").empty()) ::close(kSpareFd);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(null, STDIN_FILENO);
  ::fcntl(listener, F_SETFD, 0);
  ::setenv("HOLDFAST_MINDSPORE_OFF", "1", 1);
  const std::string number = std::to_string(listener);
  ::execl(python, python, "-u", "-m", "holdfast.mindspore._nursery", number.c_str(), nullptr);
  ::_exit(127);
}

// A pidfd of the agent (HOLDFAST_AGENT); -1: the agent is gone.
int agent_pidfd() {
  const std::string words(variable("HOLDFAST_AGENT"));
  const auto pid = static_cast<pid_t>(std::strtol(words.c_str(), nullptr, 10));
  return pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
}

// Waits for the end of the nursery or of the agent, and then kills the nursery. It ends with its
// agent by itself, unless it is stopped: then it would hold MindSpore's memory for ever.
[[noreturn]] void guard(pid_t nursery, int agent) {
  ::setpgid(0, 0);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::signal(number, SIG_IGN);
  ::prctl(PR_SET_NAME, "nursery-guard");
  // Closes all other descriptors, so that no log and no socket stays open because of the guard.
  ::dup2(static_cast<int>(::syscall(SYS_pidfd_open, nursery, 0)), STDIN_FILENO);
  ::dup2(agent, STDOUT_FILENO);
  ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
  if (::syscall(SYS_close_range, 3U, ~0U, 0U) != 0) {  // Before Linux 5.9.
    for (int fd = static_cast<int>(::sysconf(_SC_OPEN_MAX)) - 1; fd > 2; --fd) ::close(fd);
  }
  std::array<pollfd, 2> what{pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{STDOUT_FILENO, POLLIN, 0}};
  while (::poll(what.data(), what.size(), -1) < 0) continue;
  if (what[0].revents == 0) (void)::poll(what.data(), 1, kEndPatienceMs);
  ::kill(nursery, SIGKILL);  // Our child: its pid is not used again before we have ended.
  ::_exit(0);
}

// Starts the nursery and its guard. Two forks, so that they are no children of this process: they
// outlive it, and the program must not find them among its children.
bool start_nursery(int listener, const char* python) {
  const pid_t between = ::fork();
  if (between == 0) {
    const pid_t guardian = ::fork();
    if (guardian != 0) ::_exit(guardian < 0 ? 1 : 0);
    const int agent = agent_pidfd();
    const pid_t nursery = ::fork();
    if (nursery == 0) become_nursery(listener, python);
    if (nursery < 0 || agent < 0) ::_exit(1);
    guard(nursery, agent);
  }
  int status = 1;
  return between > 0 && ::waitpid(between, &status, 0) == between && status == 0;
}

// Connects to the nursery of this job. If there is none yet, starts it.
Nursery reach(const std::string& name, const char* python) {
  for (int waited_ms = 0; waited_ms < kListenPatienceMs; ++waited_ms) {
    Nursery found = connect_to(name + std::string(kGrown), kForkPatienceMs);
    if (found.fd < 0) found = connect_to(name, kImportPatienceMs);
    if (found.fd >= 0) return found;
    const int listener = listen_at(name);
    if (listener >= 0) {
      if (start_nursery(listener, python)) found = connect_to(name, kImportPatienceMs);
      ::close(listener);
      return found;
    }
    ::poll(nullptr, 0, 1);  // Another has bound the name, and is about to listen.
  }
  return {};
}

// The request: a size, then that many bytes with the folder, the number of arguments, the arguments
// and the environment; each of these ends with a 0.
std::string request_for(char** program, int count) {
  std::string text;
  const auto add = [&text](std::string_view part) { (text += part) += '\0'; };
  char* folder = ::getcwd(nullptr, 0);
  add(folder == nullptr ? "/" : folder);
  std::free(folder);
  add(std::to_string(count));
  for (int i = 0; i < count; ++i) add(program[i]);
  for (char** entry = environ; *entry != nullptr; ++entry) add(*entry);
  const auto size = static_cast<std::uint32_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
}

// Sends the request; the descriptors go along with its first bytes.
bool send_request(int fd, const std::string& request) {
  std::array<int, 4> given{0, 1, 2, kSpareFd};
  const std::size_t bytes =
      sizeof(int) * (variable("HOLDFAST_SPARE_FD").empty() ? given.size() - 1 : given.size());
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(given))> room{};
  iovec words{const_cast<char*>(request.data()), request.size()};
  msghdr message{};
  message.msg_iov = &words;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(head), given.data(), bytes);
  ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL);
  for (std::size_t done = 0; sent > 0;) {
    done += static_cast<std::size_t>(sent);
    if (done == request.size()) return true;
    sent = ::send(fd, request.data() + done, request.size() - done, MSG_NOSIGNAL);
  }
  return false;
}

// Returns nothing if the connection has ended, or if no answer comes within the limit.
std::optional<Answer> receive(int fd, int limit_ms) {
  pollfd what{fd, POLLIN, 0};
  if (::poll(&what, 1, limit_ms) <= 0) return std::nullopt;
  Answer answer{};
  if (::recv(fd, &answer, sizeof(answer), MSG_WAITALL) != sizeof(answer)) return std::nullopt;
  return answer;
}

[[noreturn]] void end_as(int status) {
  if (WIFSIGNALED(status)) {
    const rlimit none{0, 0};  // No core of the nursling: the forked process has left its own.
    ::setrlimit(RLIMIT_CORE, &none);
    ::signal(WTERMSIG(status), SIG_DFL);
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
    ::raise(WTERMSIG(status));
    ::_exit(128 + WTERMSIG(status));
  }
  ::_exit(WEXITSTATUS(status));
}

// Waits for the end of the forked process, and ends in the same way. If the nursery is gone, the
// exit code that the process itself has sent counts (kLeaving). A process that became another
// program by exec() sends none, but its end is waited for all the same.
[[noreturn]] void stand_for(pid_t pid, int pidfd, int fd) {
  std::optional<int> leaving;
  bool alive = true;
  while (true) {
    // poll() ignores negative descriptors.
    std::array<pollfd, 2> what{pollfd{fd, POLLIN, 0}, pollfd{alive ? pidfd : -1, POLLIN, 0}};
    const int ready =
        fd < 0 && !alive ? 0 : ::poll(what.data(), what.size(), alive ? -1 : kStatusPatienceMs);
    if (ready < 0) continue;
    if (alive && what[1].revents != 0) alive = false;
    if (ready > 0 && what[0].revents == 0) continue;
    const auto answer = ready > 0 ? receive(fd, 0) : std::nullopt;
    if (answer && answer->kind == kEnded) end_as(answer->value);
    if (answer && answer->kind == kLeaving) leaving = answer->value;
    if (answer) continue;
    fd = -1;
    if (alive) continue;
    if (leaving) ::_exit(*leaving);
    std::fprintf(stderr, "holdfast: the nursery is gone, so nobody knows how process %d ended\n",
                 pid);
    ::_exit(1);
  }
}

// Lets the forked process begin: it waits for one byte, and exits if the connection ends before.
// Returns its pidfd; -1: it may not begin.
int let_begin(pid_t pid, int fd) {
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) return -1;
  ::fcntl(pidfd, F_SETFD, FD_CLOEXEC);
  return ::send(fd, "", 1, MSG_NOSIGNAL) == 1 ? pidfd : -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: nursling ADDRESS all|first PYTHON [ARGUMENTS]; msrun starts it\n");
    return 2;
  }
  char** program = argv + 3;
  if (!is_to_be_asked_for(argv[2])) become(program);
  const Nursery nursery = reach(argv[1], program[0]);
  if (nursery.fd < 0 || !send_request(nursery.fd, request_for(program, argc - 3))) become(program);
  const auto answer = receive(nursery.fd, nursery.patience_ms);
  if (!answer || answer->kind != kStarted) become(program);
  // Signals to the group are for the forked process, which is in it, too. The nursling blocks them,
  // and ends as that process ends.
  sigset_t all;
  sigset_t former;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &former);
  const int pidfd = let_begin(answer->value, nursery.fd);
  if (pidfd < 0) {
    ::sigprocmask(SIG_SETMASK, &former, nullptr);
    become(program);
  }
  if (!variable("HOLDFAST_SPARE_FD").empty()) ::close(kSpareFd);  // The forked process has it.
  stand_for(answer->value, pidfd, nursery.fd);
}
