#include "runtime/agent/idle.h"

#include <sched.h>
#include <unistd.h>

#include <system_error>
#include <thread>

#include "base/text.h"
#include "io/loop.h"
#include "os/process.h"

namespace holdfast::runtime {
namespace {

// Moves all threads of the process from one policy to another. A new thread inherits the policy of
// the thread that made it, so this looks again until nothing is left to do.
void set_process(pid_t pid, int from, int to) {
  const sched_param parameters{};
  bool changed = true;
  for (int round = 0; changed && round < 10; ++round) {
    changed = false;
    for (const pid_t thread : os::numbers_in(cat("/proc/", pid, "/task"))) {
      if (::sched_getscheduler(thread) != from) continue;
      changed = ::sched_setscheduler(thread, to, &parameters) == 0 || changed;
    }
  }
}

// set_process() for all processes of the group: a wrapper may have started some.
void set_group(pid_t group, int from, int to) {
  for (const pid_t pid : os::members_of(group)) set_process(pid, from, to);
}

}  // namespace

bool may_undo_idle() {
  bool may = false;
  if (::sched_getscheduler(0) != SCHED_OTHER) return may;
  try {
    std::thread trial([&may] {  // The policy is a thread's own.
      const sched_param parameters{};
      may = ::sched_setscheduler(0, SCHED_IDLE, &parameters) == 0 &&
            ::sched_setscheduler(0, SCHED_OTHER, &parameters) == 0;
    });
    trial.join();
  } catch (const std::system_error&) {  // No thread can be had: the first spawn() will tell.
  }
  return may;
}

void make_group_idle(pid_t group) {
  set_group(group, SCHED_OTHER, SCHED_IDLE);
}

void make_group_ordinary(pid_t group) {
  set_group(group, SCHED_IDLE, SCHED_OTHER);
}

void make_process_idle(pid_t pid) {
  set_process(pid, SCHED_OTHER, SCHED_IDLE);
}
void make_process_ordinary(pid_t pid) {
  set_process(pid, SCHED_IDLE, SCHED_OTHER);
}

bool wait_until_exiting(pid_t pid, const std::atomic<bool>& cancel, Duration patience) {
  const Instant until = io::Loop::now() + patience;
  while (!os::is_exiting(pid)) {
    if (cancel || io::Loop::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

void make_dead_give_way(pid_t pid, const std::atomic<bool>& cancel, Duration time) {
  if (!wait_until_exiting(pid, cancel)) return;
  set_process(pid, SCHED_OTHER, SCHED_IDLE);
  const Instant until = io::Loop::now() + time;
  while (!cancel && io::Loop::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  make_process_ordinary(pid);
}

}  // namespace holdfast::runtime
