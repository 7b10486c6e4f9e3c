// `holdfast status`: how the jobs on this host are.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::apps {

// Prints the state of the job (of the only one that runs, if `job` is empty), as JSON where asked.
// Returns the exit code: 0; 1 where it does not run or does not answer; 2 where there are several
// and none is named.
int status(const std::string& job, bool json);

// Asks a scheduler for its status: the JSON of wire::StatusReply.
Result<std::string> query_status(const std::string& host, std::uint16_t port, Duration timeout);

}  // namespace holdfast::apps
