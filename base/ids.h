// The numbers that everything is named by. docs/GLOSSARY.md says what each word means.
#pragma once

#include <chrono>
#include <cstdint>

namespace holdfast {

using Rank = std::int32_t;          // 0 .. world_size-1; kNoRank: not known yet.
using Generation = std::uint64_t;   // Number of the group's current formation; the fencing token.
using Version = std::uint64_t;      // State after update n; version 0 is the initial state.
using Incarnation = std::uint64_t;  // 64 random bits, new at every process start.
using Duration = std::chrono::nanoseconds;
using Instant =
    std::chrono::nanoseconds;  // Since an arbitrary origin (CLOCK_MONOTONIC in the shells).

inline constexpr Rank kNoRank = -1;
inline constexpr Version kNoVersion = ~Version{0};  // "holds nothing"

}  // namespace holdfast
