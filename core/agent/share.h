// Share: how much processor time a starting spare may take from others.
#pragma once

#include <algorithm>

#include "base/ids.h"

namespace holdfast::agent {

// A token bucket, which fills at `percent` of the time that passes. While the process competes with
// others, the processor time that it uses is taken out; time that others leave idle costs nothing.
// The process may compete as long as the bucket is not empty.
class Share {
 public:
  // How much the bucket can hold. It is full at the beginning.
  static constexpr Duration kMost = std::chrono::milliseconds(100);

  Share(Instant now, int percent) : percent_(percent), looked_(now) {}

  [[nodiscard]] bool competes() const { return competes_; }

  // `used`: the processor time used since the last look. Returns whether the process may compete
  // from now on.
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
