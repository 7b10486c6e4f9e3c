// Idle: which processes take only the processor time that others leave (SCHED_IDLE). They are the
// spares that wait, and for a moment the dead.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "base/ids.h"

namespace holdfast::runtime {

// Whether a process that was made idle can be made what it was: not everyone may, and what is made
// below is ordinary. Where the user wants all to be of another policy (`chrt --idle 0 msrun ...`)
// all are.
[[nodiscard]] bool may_undo_idle();

// All threads of all processes of the group; of one process. Threads with another policy (real
// time) keep it.
void make_group_idle(pid_t group);
void make_group_ordinary(pid_t group);
void make_process_ordinary(pid_t pid);

// Waits until no thread of the process can touch its memory any more. The kernel tells nobody of
// that instant, which comes within microseconds of the lifeline's end, or of a SIGKILL. False: not
// within `patience`, or `cancel` became true.
[[nodiscard]] bool wait_until_exiting(pid_t pid, const std::atomic<bool>& cancel,
                                      Duration patience = std::chrono::seconds(10));

// How long the dead give way: some times as long as a recovery with a spare takes.
inline constexpr Duration kDeadGiveWay = std::chrono::milliseconds(100);

// What is left of a dead process gives its memory back, a tenth of a millisecond for each MB, on a
// processor that the others want for their recovery: from when it is exiting it is idle, until it
// is gone (`cancel`) or the time is over. Then it is ordinary again, since its memory is wanted,
// too. Requires: may_undo_idle().
void make_dead_give_way(pid_t pid, const std::atomic<bool>& cancel, Duration time = kDeadGiveWay);

}  // namespace holdfast::runtime
