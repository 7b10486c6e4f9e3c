// Which ranks the node ids of a job get.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/controller/member.h"

namespace holdfast::controller {

// Whole-numbered node ids 0..n-1 are the ranks; else the order is (host, node id), where
// "worker-2" is before "worker-10".
[[nodiscard]] std::vector<std::string> in_rank_order(const std::map<std::string, Member>& members);
// Another spelling of the same whole number ("01", "1") that is here already; else nothing.
[[nodiscard]] std::optional<std::string> same_number(const std::map<std::string, Member>& members,
                                                     const std::string& node_id);

}  // namespace holdfast::controller
