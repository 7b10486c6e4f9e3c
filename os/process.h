// Looks at processes through /proc, and sends them signals.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/fd.h"

namespace holdfast::os {

// The number of the thread that calls this.
pid_t this_thread();

// A descriptor of the process, which never means another process that gets its number later. Empty
// if there is no such process or no descriptor.
Fd open_process(pid_t pid);

// Sends a signal to the child, or to its whole process group. A process that is gone is no error.
Status send_signal(int pidfd, int signal);
Status signal_group(pid_t leader, int signal);

// True if no thread of the process can write to memory any more: each is exiting (PF_EXITING) or
// gone. With 30 GB of memory, that is most of a second before pidfd and EOF tell. False if the
// process can not be looked at (no free descriptor).
bool is_exiting(pid_t pid);

// The entries of a folder of /proc that are numbers: the processes in "/proc", or the threads in
// "/proc/<pid>/task". Those that begin or end meanwhile may be missing.
std::vector<pid_t> numbers_in(const std::string& folder);

// The processes of a group, the leader first, even if it is gone.
std::vector<pid_t> members_of(pid_t group);

// The processor time, in ns, that a process has used; 0 if it is gone.
std::uint64_t processor_time(pid_t pid);

// True if a signal (SIGSTOP) has stopped the whole process until another signal lets it go on. A
// slow process never looks like this, nor does one in a debugger.
bool is_stopped(pid_t pid);

// The processor time, in ns, that a stopped process has used; nothing if it is not stopped. If two
// looks find the same time, the process has not run between them.
std::optional<std::uint64_t> stopped_at(pid_t pid);

// What its main thread does, as the letter of /proc/<pid>/stat: R, S, D (waits for a device), T
// (stopped), t (in a debugger), Z; '?': it is gone.
char state_of(pid_t pid);
// The function of the kernel in which its main thread sleeps; empty: it runs, or that is not shown.
std::string sleeps_in(pid_t pid);

// When the process was started, in clock ticks since boot. With the pid, it names one process for
// good. Nothing if there is no such process.
std::optional<std::uint64_t> start_time(pid_t pid);

// True if that very process lives, or if it can not be looked at. A zombie is dead.
bool same_process_alive(pid_t pid, std::uint64_t start_time);

// The PID namespace of a process; of this process for 0. Numbers of processes mean the same to all
// processes in one namespace. Nothing if /proc does not tell, or shows the processes of another
// namespace.
std::optional<std::uint64_t> pid_namespace(pid_t pid = 0);

}  // namespace holdfast::os
