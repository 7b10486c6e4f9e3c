// Meter: where the time of this rank's steps goes. What it waits for other ranks is not its own: in
// a job whose ranks wait for each other, all steps take as long as the slowest one's.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "base/whereabouts.h"
#include "collective/waiting.h"
#include "wire/messages.h"

namespace holdfast::runtime {

// The training thread calls everything.
class Meter {
 public:
  using Clock = std::chrono::steady_clock;

  // The rank begins with this.
  void enter(Doing next, Clock::time_point now = Clock::now()) {
    const std::int64_t passed = std::chrono::nanoseconds(now - since_).count();
    const std::int64_t own = std::max<std::int64_t>(passed - collective::Waiting::take_mine(), 0);
    if (doing_ == Doing::kBetween) between_ += own;
    if (is_own(doing_)) own_ += own;
    if (doing_ == Doing::kUpdating) {
      ++steps_;
      own_ = std::max<std::int64_t>(own_ - collective::Waiting::take_longest_of_others(), 0);
    }
    if (next == Doing::kRecovering || next == Doing::kStarting) forget();
    doing_ = next;
    since_ = now;
  }
  // What a step took since the last call, and begins anew.
  void tell(wire::Progress& progress) {
    if (steps_ > 0) {
      progress.own_us = std::max(mean(own_), 1U);
      progress.between_us = mean(between_);
    }
    forget();
  }

 private:
  static bool is_own(Doing doing) {
    return doing == Doing::kBetween || doing == Doing::kComputing || doing == Doing::kStaging ||
           doing == Doing::kUpdating;
  }
  [[nodiscard]] std::uint32_t mean(std::int64_t ns) const {
    constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
    return static_cast<std::uint32_t>(std::min(ns / 1000 / steps_, kMost));
  }
  void forget() {
    own_ = between_ = 0;
    steps_ = 0;
  }

  Doing doing_ = Doing::kStarting;
  Clock::time_point since_{};
  std::int64_t own_ = 0;
  std::int64_t between_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace holdfast::runtime
