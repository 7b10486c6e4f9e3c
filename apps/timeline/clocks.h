// Hosts count the time of their traces from their own starts. This sets the traces of several hosts
// on one clock, by the wall clocks of the hosts.
#pragma once

#include <cstddef>
#include <vector>

#include "apps/timeline/read.h"

namespace holdfast::apps::timeline {

// Moves the times of the files, so that all can be compared. Files of one host keep their
// distances; those of two are as exact as their wall clocks agree. Returns how many clocks there
// were.
std::size_t set_on_one_clock(std::vector<File>& files);

}  // namespace holdfast::apps::timeline
