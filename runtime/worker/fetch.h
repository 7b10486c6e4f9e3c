// What the stores of a rank have in common: they wait for a predecessor, and fetch from other
// hosts.
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include "runtime/worker/state_transfer.h"
#include "runtime/worker/worker.h"
#include "wire/formation.h"

namespace holdfast::runtime {

// take_ownership() of the file at `path`, for as long as the settings say. A process that trains
// alone has no predecessor.
[[nodiscard]] Status take_from_predecessor(Worker& worker, const std::string& path);

// Fetches the state of `rank` at `version` from `source`, on another host. Tries again until it has
// come, it is refused for good, replacement_timeout has passed, or `stop`. Without `stop`, the
// repair under way is what ends it (it is stopped, for one, if the source's host is lost).
[[nodiscard]] Status fetch(Worker& worker, const wire::Location& source, Rank rank, Version version,
                           StateSink& sink, std::optional<std::stop_token> stop = std::nullopt);

}  // namespace holdfast::runtime
