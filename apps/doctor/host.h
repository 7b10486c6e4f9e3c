// Looks at this host for `holdfast doctor`. Changes nothing.
#pragma once

#include <cstdint>

#include "apps/doctor/findings.h"

namespace holdfast::apps::doctor {

// `port`: of a scheduler that shall listen on 127.0.0.1. It is listened at for a moment.
Host look(std::uint16_t port, const char* const* environment);

}  // namespace holdfast::apps::doctor
