// The history of a job, computed from what it leaves in its log folder: the reports of its
// recoveries and its last status. It needs no traces, and knows nothing of steps and spares. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/json.h"
#include "apps/timeline/history.h"

namespace holdfast::apps::timeline {

// By the wall clock, in ns since 1970.
struct Span {
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
};

// `reports`: the lines of recoveries.jsonl, in their order; `status`: last_status.json
// (docs/formats/runtime-folder.md). Both come from files: each value may be missing or of any type.
// `ran`: from the job's start to its end, as far as its last launcher knows.
History history_of_reports(const std::vector<Json>& reports, const Json& status, Span ran);

}  // namespace holdfast::apps::timeline
