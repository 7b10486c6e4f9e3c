// in_a_moment(): what a job that ends just now still holds is tried again for a short while.
#pragma once

#include <chrono>
#include <thread>

#include "base/result.h"

namespace holdfast::runtime {

// A job whose agent was killed just now still dies: its port and its name are free in a moment, and
// whoever starts it again at once, by a script say, need not try twice. `waits` is called before
// the second time.
template <class Check, class Waits>
Status in_a_moment(const Check& check, const Waits& waits) {
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
