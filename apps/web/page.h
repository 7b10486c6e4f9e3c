// The status page: HTML that needs no script. page.js keeps it new, page.css says how it looks.
#pragma once

#include <string>

#include "apps/web/record.h"

namespace holdfast::apps::web {

// So many ranks are shown, those first that do not simply train, unless all are asked for.
inline constexpr std::size_t kRanksShown = 100;

// What of the page changes with each answer. `all_ranks`: shows all of them.
std::string live_part_of(const Record& record, Seconds now, bool all_ranks);

// The whole page.
std::string page_of(const Record& record, Seconds now, bool all_ranks);

// For who has not given the page's token: how to get it. For who has: goes on to the page, without
// the token in its address.
std::string refusal_page();
std::string welcome_page();

}  // namespace holdfast::apps::web
