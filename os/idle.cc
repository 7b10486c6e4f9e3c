#include "os/idle.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <thread>

#include "base/text.h"
#include "os/process.h"

namespace holdfast::os {
namespace {

using Clock = std::chrono::steady_clock;

bool set_thread(pid_t thread, int from, int to) {
  const sched_param parameters{};
  return ::sched_getscheduler(thread) == from && ::sched_setscheduler(thread, to, &parameters) == 0;
}

// Moves all threads of the process from one policy to another. A new thread inherits the policy of
// the thread that made it, so this looks again until nothing is left to do.
void set_process(pid_t pid, int from, int to) {
  bool changed = true;
  for (int round = 0; changed && round < 10; ++round) {
    changed = false;
    for (const pid_t thread : numbers_in(cat("/proc/", pid, "/task"))) {
      changed = set_thread(thread, from, to) || changed;
    }
  }
}

// set_process() for all processes of the group: a wrapper may have started some.
void set_group(pid_t group, int from, int to) {
  for (const pid_t pid : members_of(group)) set_process(pid, from, to);
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
  const auto until = Clock::now() + patience;
  while (!is_exiting(pid)) {
    if (cancel || Clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

void make_leaders_idle(pid_t group) {
  for (const pid_t pid : members_of(group)) (void)set_thread(pid, SCHED_OTHER, SCHED_IDLE);
}

void make_dead_give_way(pid_t pid, const std::atomic<bool>& cancel, Duration time) {
  if (!wait_until_exiting(pid, cancel)) return;
  (void)set_thread(pid, SCHED_OTHER, SCHED_IDLE);
  const auto until = Clock::now() + time;
  while (!cancel && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  (void)set_thread(pid, SCHED_IDLE, SCHED_OTHER);
}

}  // namespace holdfast::os
