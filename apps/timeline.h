// Pictures of what happened to a job.
#pragma once

#include <string>

#include "runtime/agent/agent.h"

namespace holdfast::apps {

// `holdfast timeline`: draws a job out of its traces.
//
// Takes the arguments that follow the command. Returns the exit code: 0; 1: there are no traces, or
// the picture can not be written; 2: a wrong command line. Prints what is wrong.
int draw_timeline(int argc, const char* const* argv);

// Draws the recoveries of a job that has ended, out of their reports in its log folder, into
// runtime::kPicture there. Returns a sentence that says where it is, or why it can not be written;
// empty: there was no recovery.
std::string draw_recoveries(const runtime::Ended& ended);

}  // namespace holdfast::apps
