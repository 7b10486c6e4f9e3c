// The command line of msrun and `holdfast run`: one set of options for both.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/result.h"
#include "runtime/agent.h"

namespace holdfast::apps {

// What the options are read into; outlives the parsing.
struct LaunchArguments {
  runtime::AgentOptions agent;
  std::string join = "False";
  int node_rank = -1;
  int local_worker_num = 0;  // 0: all.
};

// Adds the options to `app`. The first argument that is no option is the program; what follows is
// left alone.
void add_launch_options(CLI::App& app, LaunchArguments& arguments);

// After the parsing: the agent's options, or what is wrong.
Result<runtime::AgentOptions> finish(const CLI::App& app, LaunchArguments arguments,
                                     const char* const* environment);

// Prints a parsing error in one sentence (or the help that was asked for); the exit code.
int report(const CLI::ParseError& error, const CLI::App& app);

// The exit codes, for --help.
extern const char* const kExitCodes;

}  // namespace holdfast::apps
