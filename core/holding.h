// What one rank's arena holds while nothing writes to it.
#pragma once

#include "base/ids.h"

namespace holdfast {

struct Holding {
  Version version = kNoVersion;  // kNoVersion: nothing (a fresh or lost arena).
  Version staged = kNoVersion;   // version, or version + 1 where that step was staged.
  bool private_is_own = false;   // Its private part has no other copy.
  bool operator==(const Holding&) const = default;
};

}  // namespace holdfast
