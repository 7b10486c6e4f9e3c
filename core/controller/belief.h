// Decides whether the versions that the ranks report can all be true together (P43).
//
// Pure. A step is committed by all ranks or by none. So there is one number n such that every rank
// that holds anything holds version n, or n-1 because it has yet to make the update. (It has staged
// step n then, unless HOLDFAST_PROTECT is 0.)
#pragma once

#include <optional>
#include <vector>

#include "base/ids.h"

namespace holdfast::controller {

struct Said {
  Rank rank = kNoRank;
  Version version = kNoVersion;  // kNoVersion: nothing, which is always possible.
  Version staged = kNoVersion;
  Version told = 0;  // The newest version that it has reported before.
  bool private_is_own = false;
};

// Whether one rank's report is possible: what is staged is its version or the next one, and not
// older than `told`.
[[nodiscard]] bool is_sound(const Said& said);

struct Belief {
  Version version = 0;           // The n that fits the most reports, and
  std::vector<Rank> impossible;  // the ranks on whose reports no plan may rest, ascending.
};
// Finds n and the ranks that contradict it. If two numbers fit equally many reports, n is the one
// that fewer ranks contradict by earlier reports; then the smaller one. A rank ahead of n is
// impossible. A rank behind n-1 is impossible only if it has a private part: otherwise the plan
// copies the state of the others to it.
[[nodiscard]] Belief believe(const std::vector<Said>& all);

}  // namespace holdfast::controller
