// Takes the sockets of this process away from its fork()ed children.
//
// A child that a framework forks (a data loader) would have copies of our sockets. They would stay
// open after the death of this process, and its peers would not learn of it. CLOEXEC does not help,
// because such a child never calls exec. So a handler of pthread_atfork puts /dev/null in each
// socket's place. The number stays taken, so that old code in the child does not reach another
// file.
#pragma once

#include <mutex>

namespace holdfast::os {

// While this is held, there is no fork(). Hold it to open and guard a socket, or to unguard and
// close one. Hold it briefly, and call nothing else.
std::unique_lock<std::mutex> hold_forks();

// Requires hold_forks().
void guard_from_children(int fd);
void unguard(int fd);

}  // namespace holdfast::os
