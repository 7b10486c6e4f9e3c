// The command line of msrun, which is also that of `holdfast run`.
#pragma once

#include <string>

namespace holdfast::apps {

// Reads the arguments that follow the command's `name`, and runs the agent. Returns the exit code.
int launch(const std::string& name, int argc, const char* const* argv,
           const char* const* environment);

}  // namespace holdfast::apps
