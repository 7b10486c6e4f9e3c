// Share: how much processor time a starting spare may take from others.
#pragma once

#include <algorithm>

#include "base/ids.h"

namespace holdfast::agent {

// A bucket that fills by `percent` of the time that passes. Whoever competes with others empties it
// by the processor time that it uses; what it uses of the time that others leave costs nothing. It
// may compete as long as there is something in it.
class Share {
 public:
  // So much may be used at once, at the beginning as well.
  static constexpr Duration kMost = std::chrono::milliseconds(100);

  Share(Instant now, int percent) : percent_(percent), looked_(now) {}

  [[nodiscard]] bool competes() const { return competes_; }

  // `used`: its processor time since the last look. Whether it may compete from now on.
  bool look(Instant now, Duration used) {
    if (competes_) left_ -= used;
    left_ = std::min(left_ + (now - looked_) * percent_ / 100, kMost);
    looked_ = now;
    competes_ = percent_ > 0 && left_ > Duration{};
    return competes_;
  }

 private:
  int percent_;
  Instant looked_;
  Duration left_ = kMost;
  bool competes_ = percent_ > 0;
};

}  // namespace holdfast::agent
