// Idle: processes that take only the processor time that others leave (SCHED_IDLE). They are the
// waiting spares and, for a moment, the dead.
//
// No thread but a process's first may be idle when it ends. On a busy machine it would wait long
// for the processor time that it needs for that, and meanwhile the kernel spins in whoever reaps
// the process, if somebody has looked at these threads in /proc. Who kills a process makes it
// ordinary before.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "base/ids.h"

namespace holdfast::os {

// Whether this user may make an idle process ordinary (SCHED_OTHER) again. False also if this
// process has another policy, which all processes of the job are to have (`chrt --idle 0 msrun
// ...`).
[[nodiscard]] bool may_undo_idle();

// These change all threads of all processes of a group, or of one process. Threads with another
// policy (real time) keep it.
void make_group_idle(pid_t group);
void make_group_ordinary(pid_t group);
void make_process_idle(pid_t pid);
void make_process_ordinary(pid_t pid);

// Of each process of the group, the first thread: it is to be killed, and to give way as below.
void make_leaders_idle(pid_t group);

// Waits until no thread of the process can touch its memory any more. This happens within
// microseconds of the lifeline's end or of a SIGKILL, but the kernel sends no notice, so this
// function polls. False: it did not happen within `patience`, or `cancel` became true.
[[nodiscard]] bool wait_until_exiting(pid_t pid, const std::atomic<bool>& cancel,
                                      Duration patience = std::chrono::seconds(10));

// How long the dead give way: several times as long as a recovery with a spare takes.
inline constexpr Duration kDeadGiveWay = std::chrono::milliseconds(100);

// A dead process frees its memory on a processor that the others want for their recovery, for a
// tenth of a millisecond per MB. The last of its threads does so, and an idle one is mostly the
// last. So its first thread is made idle once it is exiting, until it is gone (`cancel`) or `time`
// is over. Then it is ordinary again, since its memory is wanted too. Requires: may_undo_idle().
void make_dead_give_way(pid_t pid, const std::atomic<bool>& cancel, Duration time = kDeadGiveWay);

}  // namespace holdfast::os
