// Signals that this process heeds only if a certain process sends them. Whoever ends a job may
// signal all of its processes, where the one that started them is to decide what they do.
#pragma once

#include <sys/types.h>

#include <initializer_list>

namespace holdfast::os {

// From now on each of these signals does nothing here, unless `sender` sends it: then its default
// action follows. Leaves a signal alone that the program handles or ignores, and forked processes
// have the default action. Once in a process.
void heed_only(pid_t sender, std::initializer_list<int> signals);

}  // namespace holdfast::os
