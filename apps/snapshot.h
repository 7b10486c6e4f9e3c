// `holdfast snapshot`: looks into folders of snapshots, checks them, and has a job make one.
#pragma once

namespace holdfast::apps {

// Takes the arguments that follow the command. Returns the exit code: 0; 1: something is damaged or
// not there, and it prints what; 2: a wrong command line.
int snapshots(int argc, const char* const* argv);

}  // namespace holdfast::apps
