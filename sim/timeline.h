// Timeline: simulated time, and what is going to happen. What is due at the same moment happens in
// the order in which it was added.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "base/ids.h"

namespace holdfast::sim {

class Timeline {
 public:
  [[nodiscard]] Instant now() const { return now_; }
  void at(Instant when, std::function<void()> what) {
    due_.emplace(std::pair(when, ++order_), std::move(what));
  }
  // Lets time pass until `end`. Once `is_over` is true nothing more happens.
  void pass_until(Instant end, const std::function<bool()>& is_over) {
    while (!is_over() && !due_.empty() && due_.begin()->first.first <= end) {
      auto next = due_.extract(due_.begin());
      now_ = next.key().first;
      next.mapped()();
    }
    now_ = end;
  }

 private:
  Instant now_{};
  std::uint64_t order_ = 0;
  std::map<std::pair<Instant, std::uint64_t>, std::function<void()>> due_;
};

}  // namespace holdfast::sim
