// Slice: how soon a thread runs after it was woken, on cores that others keep busy.
//
// A thread with a short slice runs at once when it wakes up (EEVDF, Linux 6.12 and later). Another
// thread may wait for milliseconds, until a tick finds that the running thread's slice is used up.
// A slice is no priority: nobody gets more time than before, and an endless loop holds up nobody.
// Short slices are for threads that nearly always sleep and that others wait for. On other kernels,
// and for threads that are not SCHED_OTHER, all of this does nothing.
#pragma once

#include <sys/types.h>

namespace holdfast::os {

// For the calling thread (0), or for a thread of any process of this user. Its new threads and
// forked processes inherit the slice, but what spawn() starts does not. False: the kernel took no
// notice, or there is no such thread.
bool take_short_slice(pid_t thread = 0);

// Gives a thread with a short slice the kernel's usual one again. Safe between fork() and exec().
void take_usual_slice(pid_t thread = 0);

// The first is for all threads of a process. The second is for all threads of this process but the
// calling one and `but`. Threads that begin meanwhile may be left out.
void take_short_slice_of_all(pid_t process);
void take_usual_slice_of_others(pid_t but = 0);

// Whether the thread has a short slice.
[[nodiscard]] bool has_short_slice(pid_t thread = 0);

}  // namespace holdfast::os
