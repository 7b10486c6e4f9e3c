// Sets the traces of several hosts on one clock. A host counts the time in its traces from its own
// start; the wall clocks of the hosts tell how these times relate.
#pragma once

#include <cstddef>
#include <vector>

#include "apps/timeline/read.h"

namespace holdfast::apps::timeline {

// Shifts the times of the files so that all can be compared. Files of one host are shifted alike.
// Between two hosts, times are as exact as their wall clocks agree. Returns how many clocks there
// were.
std::size_t set_on_one_clock(std::vector<File>& files);

}  // namespace holdfast::apps::timeline
