// What Prometheus gets of a job.
#pragma once

#include <string>

#include "apps/web/record.h"

namespace holdfast::apps::web {

// The type of what metrics_of() returns.
inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// In Prometheus' text format. docs/operating.md lists the metrics. Without an answer of the
// scheduler at present, holdfast_up is 0 and there are only counters: an old value is not shown as
// if it were new.
std::string metrics_of(const Record& record, Seconds now);

}  // namespace holdfast::apps::web
