// Whether what the ranks say that they hold can be true, all of it together (P43).
//
// Pure. Every step n is committed by all ranks or by none. So one number n describes all: whoever
// holds anything holds n, or n-1 and has not made its update yet. (It has staged step n then,
// unless HOLDFAST_PROTECT is 0.)
#pragma once

#include <optional>
#include <vector>

#include "base/ids.h"

namespace holdfast::controller {

struct Said {
  Rank rank = kNoRank;
  Version version = kNoVersion;  // kNoVersion: nothing, which can always be.
  Version staged = kNoVersion;
  Version told = 0;  // The newest version that it is known to have had, as it said itself.
  bool private_is_own = false;
};

// Whether one rank can say this: its step comes after its version, and it has lost nothing since it
// told of `told`.
[[nodiscard]] bool is_sound(const Said& said);

struct Belief {
  Version version = 0;           // The greatest n that the most can hold, and
  std::vector<Rank> impossible;  // whose word no plan must rest on, by rank.
};
// Where two numbers are believed by equally many, that one counts which the earlier words of fewer
// ranks contradict, then the smaller one. Who is behind the others is left to the plan, which
// copies their state to it, unless that can not replace a part that is only its own.
[[nodiscard]] Belief believe(const std::vector<Said>& all);

}  // namespace holdfast::controller
