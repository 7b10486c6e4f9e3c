// Waits for a child's end in a loop.
#pragma once

#include <functional>

#include "io/loop.h"
#include "os/spawn.h"

namespace holdfast::io {

// Reaps the child when it has ended, and calls `on_exit` once, in the loop. Copies the descriptor.
// Call it in the loop's thread, or while no thread runs the loop. Throws std::system_error if no
// descriptor is free.
void watch(Loop& loop, int pidfd, std::function<void(os::Exit)> on_exit);

}  // namespace holdfast::io
