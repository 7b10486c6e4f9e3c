// Drift: replicas of one version whose values differ. This file says what ranks tell each other to
// find drift, after how many steps they compare, and in which words they name a difference.
//
// It is pure: train/replicas.h exchanges, waits and reads the clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace holdfast::train {

// What a rank tells the others in a comparison, sent as these bytes. Times are in nanoseconds.
struct Reading {
  std::uint64_t digest = 0;    // A digest of the digests of all tensors.
  std::uint64_t read = 0;      // The time that computing them took.
  std::uint64_t exchange = 0;  // The time of the last comparison's exchange; 0: it is the first.
  std::uint64_t step = 0;      // The shortest step since the last comparison; 0: none since.
};

// Pace: when replicas are compared. That is before the first step of every generation, at the end
// of a loop, and in between after so many steps that comparing takes at most a thousandth of their
// time. Each version is compared at most once in a generation. Ranks that took part in the same
// comparisons give the same answers.
class Pace {
 public:
  // Whether to compare now: before the step that follows `version` or, with `at_end`, at the end of
  // a loop whose last step made `version`.
  [[nodiscard]] bool is_due(Generation generation, Version version, bool at_end) const;
  // Call it after each comparison. `readings`: those of all ranks, by rank.
  void compared(Generation generation, Version version, std::span<const Reading> readings);

 private:
  Generation generation_ = 0;
  Version version_ = 0;
  Version next_ = 0;
};

// How many steps to make until the next comparison.
[[nodiscard]] std::uint64_t steps_between(std::span<const Reading> readings);

// Names the tensors that differ. It remembers which ones were named, and names each only once.
class Differences {
 public:
  explicit Differences(std::vector<std::string> names) : names_(std::move(names)) {
    named_.resize(names_.size());
  }
  // `digests`: those of rank 0's tensors in the order of the names, then those of rank 1's, and so
  // on. Returns a clause about the first tensor that differs and was not named yet; it names a rank
  // whose values are not those of most ranks. Empty if there is no such tensor.
  [[nodiscard]] std::string name_new(std::span<const std::uint64_t> digests, Version version);

  [[nodiscard]] std::size_t tensors() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
  std::vector<bool> named_;
};

}  // namespace holdfast::train
