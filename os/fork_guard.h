// Takes the sockets of this process away from its fork()ed children.
//
// A child that a framework forks (a data loader) would hold copies of our sockets and so keep them
// open when this process is dead; its peers would wait for an end that does not come. CLOEXEC does
// not help: such a child never calls exec. So a handler of pthread_atfork puts /dev/null in each
// socket's place. The number stays taken: code in the child that still uses its old socket does not
// reach somebody else's.
#pragma once

#include <mutex>

namespace holdfast::os {

// No fork() happens while this is held: open and guard, or unguard and close, in one piece under
// it. Hold it briefly; never call out with it.
std::unique_lock<std::mutex> hold_forks();

// Requires hold_forks().
void guard_from_children(int fd);
void unguard(int fd);

}  // namespace holdfast::os
