// `holdfast timeline`: draws what happened to a job, out of its traces.
#pragma once

namespace holdfast::apps {

// Takes the arguments that follow the command. Returns the exit code: 0; 1: there are no traces, or
// the picture can not be written; 2: a wrong command line. Prints what is wrong.
int draw_timeline(int argc, const char* const* argv);

}  // namespace holdfast::apps
