// `holdfast verify`: proves on a program that it goes on with the same bits after faults.
#pragma once

namespace holdfast::apps {

// Becomes python/holdfast/verify, with the arguments that follow the command. Returns an exit code
// only where there is no Python.
int verify(int argc, const char* const* argv);

}  // namespace holdfast::apps
