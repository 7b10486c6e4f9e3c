// msrun: starts a job's processes on this host and keeps them going.
#include <unistd.h>

#include <cstdio>

#include "apps/launch_options.h"

int main(int argc, char** argv) {
  using namespace holdfast;
  CLI::App app(
      "Starts the scheduler and the workers of a training job and replaces those that fail.\n"
      "Usage: msrun [options] program [its arguments]",
      "msrun");
  app.set_version_flag("--version", HOLDFAST_VERSION);
  apps::LaunchArguments arguments;
  apps::add_launch_options(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return apps::report(error, app);
  }
  const auto options = apps::finish(app, arguments, environ);
  if (options) return runtime::run_agent(*options);
  std::fprintf(stderr, "msrun: %s\n", options.error().what.c_str());
  return runtime::kExitUsage;
}
