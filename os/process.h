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

// A descriptor that stands for the process, whoever gets its number later. Empty: there is no such
// process, or no descriptor.
Fd open_process(pid_t pid);

// Sends a signal to the child, or to its whole process group. A process that is gone is no error.
Status send_signal(int pidfd, int signal);
Status signal_group(pid_t leader, int signal);

// True where none of the process's threads can write memory any more: each is on its way out of the
// kernel's door (PF_EXITING) or gone. With 30 GB that is most of a second before pidfd and EOF
// tell. Of one that can not be looked at (no free descriptor) nothing is claimed: false.
bool is_exiting(pid_t pid);

// The entries of a folder of /proc whose names are numbers: the processes in "/proc", the threads
// of one in "/proc/<pid>/task". What appears or ends meanwhile may be missing or not.
std::vector<pid_t> numbers_in(const std::string& folder);

// True where a signal has stopped the process as a whole (SIGSTOP): it does nothing until another
// signal lets it go on. Slowness never looks like this, nor does a debugger's hold.
bool is_stopped(pid_t pid);

// The processor time, in ns, that a stopped process had used; nothing where it is not stopped. If
// two looks find the same, it has not run between them: not even long enough to be stopped again.
std::optional<std::uint64_t> stopped_at(pid_t pid);

// When the process was started, in clock ticks since boot: with the pid it names one process for
// good. Nothing where there is no such process.
std::optional<std::uint64_t> start_time(pid_t pid);

// True where that very process is there and not yet dead (a zombie is dead), or can not be looked
// at.
bool same_process_alive(pid_t pid, std::uint64_t start_time);

// The PID namespace of a process, of our own for 0: numbers of processes mean the same to all that
// are in one. Nothing where it can not be told, or where /proc shows the processes of another.
std::optional<std::uint64_t> pid_namespace(pid_t pid = 0);

}  // namespace holdfast::os
