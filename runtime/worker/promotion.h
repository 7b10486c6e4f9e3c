// How a waiting spare learns which place it gets: by a line through a pipe from its agent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "config/settings.h"

namespace holdfast::runtime {

struct Promotion {
  std::string node_id;
  std::uint64_t attempt = 0;
};

// The rank that a spare was started for; kNoRank: for any. An agent's places are named by ranks.
[[nodiscard]] Rank rank_of_bound_spare(const config::Settings& settings);

// Waits for the line. Nothing: the pipe was closed, since the job ends without this spare.
[[nodiscard]] Result<std::optional<Promotion>> wait_for_promotion(int fd);

}  // namespace holdfast::runtime
