// How a process has ended: as an exit code, in a reason for people, and as the agent's own end.
#pragma once

#include <cstdint>
#include <string>

#include "core/agent/events.h"
#include "core/agent/job.h"
#include "wire/messages.h"

namespace holdfast::agent {

// The exit code that a shell would report: 0..255, or 128 + signal.
[[nodiscard]] std::int32_t exit_code(const wire::Ending& ending);
[[nodiscard]] bool ended_well(const wire::Ending& ending);
// Whether it is known by now how the process has ended.
[[nodiscard]] bool is_told(const Died& e);
[[nodiscard]] wire::Reason how_it_ended(const Died& e, const std::string& node_id);

// The job has failed, as this process of `node_id` had heard. Its exit code may be 0 all the same.
[[nodiscard]] Exit failed(const Died& e, const std::string& node_id);
// The job fails because the processes of a place fail each time. Exit code 0 in the midst of the
// training is a failure, too.
[[nodiscard]] Exit too_often(const Place& place, const Options& options);
// The job fails by an exception that every further process of the place would end with.
[[nodiscard]] Exit for_its_error(const Place& place, const Died& e);

}  // namespace holdfast::agent
