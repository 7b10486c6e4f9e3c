// `holdfast status`: how the jobs on this host are.
#pragma once

#include <string>

namespace holdfast::apps {

// Prints the state of the job (of the only one that runs, if `job` is empty), as JSON where asked.
// Returns the exit code: 0; 1 where it does not run or does not answer; 2 where there are several
// and none is named.
int status(const std::string& job, bool json);

}  // namespace holdfast::apps
