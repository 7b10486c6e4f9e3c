// The owner is a line of text: its process number and when it was started.
#include "runtime/worker/ownership.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include "base/text.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/process.h"

namespace holdfast::runtime {
namespace {

struct Owner {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  [[nodiscard]] bool may_write() const {
    return pid > 0 && pid != ::getpid() && os::same_process_alive(pid, start_time) &&
           !os::is_exiting(pid);
  }
};

Owner read_owner(int fd) {
  char text[64] = {};
  if (::pread(fd, text, sizeof(text) - 1, 0) <= 0) return {};
  int pid = 0;
  unsigned long long start_time = 0;
  if (std::sscanf(text, "%d %llu", &pid, &start_time) != 2) return {};
  return {pid, start_time};
}

Status write_owner(int fd, const std::string& path) {
  const auto start_time = os::start_time(::getpid());
  if (!start_time) return Error{Blame::kWorld, "cannot read /proc/self/stat: is /proc mounted?"};
  const std::string text = cat(::getpid(), ' ', *start_time, '\n');
  if (::ftruncate(fd, 0) == 0 && ::pwrite(fd, text.data(), text.size(), 0) > 0) return {};
  return os::system_error(cat("cannot write ", path), errno);
}

// By a pidfd, because the pid may name another process by now.
void end_if_stopped(const Owner& owner) {
  const os::Fd pidfd = os::open_process(owner.pid);
  if (!pidfd || !owner.may_write() || !os::is_stopped(owner.pid)) return;
  if (!os::send_signal(pidfd.get(), SIGKILL)) return;
  std::fprintf(stderr, "holdfast: ended process %d, which was stopped and had this place before\n",
               owner.pid);
}

Error too_late(const Owner& owner, bool locked, const std::string& file) {
  if (!locked) return {Blame::kWorld, cat("another process holds ", file, " locked: end it")};
  return {Blame::kWorld,
          cat("process ", owner.pid, ", which had this place before, still lives and could ",
              "write to its arena: end it (kill -9 ", owner.pid, ")")};
}

}  // namespace

Status take_ownership(const std::string& path, const std::function<Status()>& pause,
                      Duration patience) {
  const std::string file = path + ".owner";
  const auto opened = os::open_own_file(file, O_RDWR | O_CREAT);
  if (!opened) return opened.error();
  const os::Fd& fd = *opened;
  const Instant until = io::Loop::now() + patience;
  for (;;) {
    // The lock is held only for a look and a write, but its holder may be stopped meanwhile.
    const bool locked = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno != EWOULDBLOCK && errno != EINTR) {
      return os::system_error(cat("cannot lock ", file), errno);
    }
    const Owner owner = read_owner(fd.get());
    if (locked) {
      const bool free = !owner.may_write();
      const Status written = free ? write_owner(fd.get(), file) : Status{};
      ::flock(fd.get(), LOCK_UN);
      if (free) return written;
    }
    end_if_stopped(owner);
    if (io::Loop::now() > until) return too_late(owner, locked, file);
    if (auto paused = pause(); !paused) return paused.error();
  }
}

}  // namespace holdfast::runtime
