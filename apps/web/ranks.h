// The table of ranks on the status page.
#pragma once

#include <cstddef>
#include <string>

#include "apps/json.h"

namespace holdfast::apps::web {

// At most `most` ranks: first those that do not simply train, then the others. Above the table, how
// many are in which state.
std::string ranks_of(const Json& status, std::size_t most);

}  // namespace holdfast::apps::web
