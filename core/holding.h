// What one rank's arena holds while nothing writes to it.
#pragma once

#include <vector>

#include "base/ids.h"
#include "wire/messages.h"

namespace holdfast {

struct Holding {
  Version version = kNoVersion;      // kNoVersion: nothing (a fresh or lost arena).
  Version staged = kNoVersion;       // `version`, or `version` + 1 if that step is staged.
  bool private_is_own = false;       // It has a private part, which no other rank can replace.
  std::vector<wire::HeldCopy> held;  // What this rank holds for others.
  // A memory error has taken a part of what all ranks hold alike, or of the private part.
  bool has_lost_shared = false;
  bool has_lost_private = false;
  bool operator==(const Holding&) const = default;
};

}  // namespace holdfast
