// Waits for a child's end in a loop.
#pragma once

#include <functional>

#include "io/loop.h"
#include "os/spawn.h"

namespace holdfast::io {

// Calls `on_exit` once, in the loop, when the child has ended, and reaps it. Copies the descriptor.
// From the loop's thread, or while no thread runs the loop. Throws std::system_error where no
// descriptor can be had.
void watch(Loop& loop, int pidfd, std::function<void(os::Exit)> on_exit);

}  // namespace holdfast::io
