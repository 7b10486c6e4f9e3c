// The pictures of the status page: SVG that stands in HTML and takes its colours from page.css.
#pragma once

#include <string>

#include "apps/web/record.h"

namespace holdfast::apps::web {

// The loss over the steps, with a mark at each recovery. Empty: there are not two points.
std::string loss_chart(const Record& record);

// Steps per second over the time since this process began. Empty: there are not two points.
std::string speed_chart(const Record& record);

// A recovery as a bar, with a piece for each phase. `whole`: the seconds of the full width.
std::string recovery_bar(const Json& report, double whole);

}  // namespace holdfast::apps::web
