// SpanStop: whether the operations of a SpanPart must stop, and the means to stop them.
//
// It owns this rank's links, because cutting them is what stops the other hosts. It knows no other
// part of a SpanPart.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "collective/gate.h"
#include "collective/links.h"

namespace holdfast::collective {

// The period in which a rank that waits for other hosts looks for an abort by its mates.
inline constexpr int kLookMs = 20;

class SpanStop {
 public:
  struct Joining {
    std::chrono::steady_clock::time_point deadline;
    std::stop_token cancel;
    [[nodiscard]] bool is_late() const { return std::chrono::steady_clock::now() >= deadline; }
  };

  // `gate`: the gate of this host's segment.
  SpanStop(Gate& gate, Joining joining) : gate_(gate), joining_(std::move(joining)) {}

  // Call it once, while joining: after that, any thread may cut the links.
  void own(std::vector<std::unique_ptr<Link>> links) { links_ = std::move(links); }
  void end_joining() { joining_.reset(); }
  [[nodiscard]] const std::optional<Joining>& joining() const { return joining_; }

  // Stops all ranks: the gate stops the mates, the links stop the hosts at their other ends, and
  // those hosts do the same. Thread-safe.
  void abort() {
    gate_.abort();
    for (const auto& link : links_) link->cut();
  }
  [[nodiscard]] bool aborted() const { return gate_.aborted(); }
  // Whether an operation that is under way must stop.
  [[nodiscard]] bool must_stop() const {
    if (gate_.frozen()) return true;
    return joining_ && (joining_->cancel.stop_requested() || joining_->is_late());
  }

 private:
  Gate& gate_;
  std::optional<Joining> joining_;  // Set only while the rank joins.
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace holdfast::collective
