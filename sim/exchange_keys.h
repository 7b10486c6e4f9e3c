// The ids and keys of the exchange before the sessions; see sim/exchange.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/text.h"

namespace holdfast::sim {

inline constexpr std::uint64_t kPutId = 1;
inline constexpr std::uint64_t kListId = 2;
// The id for rank 0's value; the next one for rank 1's.
inline constexpr std::uint64_t kFirstGetId = 3;
inline constexpr const char* kList = "list";

inline std::string key_of(Rank rank) {
  return cat("of-", rank);
}

}  // namespace holdfast::sim
