// Words of snapshots.
#pragma once

#include <string>

#include "wire/reason.h"

namespace holdfast::wording {

// The sentence of a reason that is about a snapshot. Empty for all others.
[[nodiscard]] std::string of_snapshot(const wire::Reason& reason);

}  // namespace holdfast::wording
