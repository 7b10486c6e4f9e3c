// The files of the status page, which are part of the program.
#pragma once

#include <string_view>

namespace holdfast::apps::web {

extern const std::string_view kPageCss;
extern const std::string_view kPageJs;

}  // namespace holdfast::apps::web
