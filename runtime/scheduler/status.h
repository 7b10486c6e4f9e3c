// The scheduler's answer to "how is the job?".
#pragma once

#include <deque>
#include <string>

#include "core/controller/machine.h"
#include "runtime/scheduler/taken_places.h"

namespace holdfast::runtime {

// JSON: {"job":…, "state":"running" (or what all do instead), "generation":…, "version":…,
// "world_size":… (the workers), "servers":…, "recoveries":…, "cause":…,
// "ranks":[{"rank":0,"role":"worker","node_id":…,"pid":…,"host":…,"state":…,"version":…,"loss":…}],
// "recovery_reports":[as in recoveries.jsonl, newest last]}. version: the least that all ranks are
// known to have reached. `reports`: lines of recoveries.jsonl, newest last.
std::string status_json(const controller::Machine& machine, std::int32_t workers,
                        std::int32_t servers, bool under_tls,
                        const std::deque<TakenPlaces::Seeker>& seekers,
                        const std::deque<std::string>& reports);

}  // namespace holdfast::runtime
