// Slice: how soon a thread runs after it was woken, on cores that others keep busy.
//
// Of two threads with equal claims the kernel runs the one that asked for the shorter slice, at
// once when it wakes up (EEVDF, Linux 6.12 and later). Otherwise it may wait until the next tick
// finds the slice of another used up: milliseconds. It is no priority: nobody gets more time than
// before, and a loop that does not end holds up nobody. For threads that sleep nearly always and
// that others wait for. On other kernels, and for threads that are not SCHED_OTHER, all of this
// does nothing.
#pragma once

#include <sys/types.h>

namespace holdfast::os {

// Of the calling thread, or of another one of a process of the same user. Threads and processes
// that it makes inherit the slice, but not what spawn() starts. False: the kernel took no notice,
// or there is no such thread.
bool take_short_slice(pid_t thread = 0);

// Back to the kernel's usual slice. Nothing happens to a thread that has no short one. Safe between
// fork() and exec().
void take_usual_slice(pid_t thread = 0);

// The first: for all threads of a process. The second: for all threads of this process, except the
// calling one and `but`. A thread that is made meanwhile may be left out.
void take_short_slice_of_all(pid_t process);
void take_usual_slice_of_others(pid_t but = 0);

// Whether the thread has a short slice.
[[nodiscard]] bool has_short_slice(pid_t thread = 0);

}  // namespace holdfast::os
