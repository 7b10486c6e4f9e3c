// retry(): tries for a short while to get what a job that is ending still holds.
#pragma once

#include <chrono>
#include <thread>

#include "base/result.h"

namespace holdfast::runtime {

// Checks until all is well, for 2 s at most. A job whose agent was killed a moment ago still holds
// its port and its name. So a script that starts it again at once need not try twice. `waits` is
// called before the second check.
template <class Check, class Waits>
Status retry(const Check& check, const Waits& waits) {
  constexpr auto kMoment = std::chrono::seconds(2);
  constexpr auto kBetween = std::chrono::milliseconds(10);
  const auto end = std::chrono::steady_clock::now() + kMoment;
  Status status = check();
  if (!status) waits();
  while (!status && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kBetween);
    status = check();
  }
  return status;
}

}  // namespace holdfast::runtime
