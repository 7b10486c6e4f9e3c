// Drift: replicas of one version that hold other values than one another. What ranks tell each
// other to find it, after how many steps they do, and in which words the first difference is named.
//
// Nothing here exchanges, waits or reads a clock: train/replicas.h does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace holdfast::train {

// What a rank tells the others in a comparison, byte for byte. Times are in nanoseconds.
struct Reading {
  std::uint64_t digest = 0;    // Of the digests of all tensors.
  std::uint64_t read = 0;      // What it took to compute them.
  std::uint64_t exchange = 0;  // What the exchange of the comparison before took; 0: none before.
  std::uint64_t step = 0;      // The shortest step since that comparison; 0: none since.
};

// When replicas are compared: first of all in every generation, at the end of a loop, and after so
// many steps that it costs a thousandth of their time at most. Each version at most once in a
// generation. Ranks that were in the same comparisons give the same answers.
class Pace {
 public:
  // Before the step that follows `version`, or at a loop's end after it.
  [[nodiscard]] bool is_due(Generation generation, Version version, bool at_end) const;
  // `readings`: of all ranks, by rank.
  void compared(Generation generation, Version version, std::span<const Reading> readings);

 private:
  Generation generation_ = 0;
  Version version_ = 0;
  Version next_ = 0;
};

// The steps from one comparison to the next.
[[nodiscard]] std::uint64_t steps_between(std::span<const Reading> readings);

// Remembers which tensors were named, and names each once.
class Differences {
 public:
  explicit Differences(std::vector<std::string> names) : names_(std::move(names)) {
    named_.resize(names_.size());
  }
  // `digests`: of rank 0's tensors in the order of the names, then of rank 1's, and so on. A clause
  // that names the first tensor that differs and was not named, and the rank that holds other
  // values of it than most ranks do; empty if there is none.
  [[nodiscard]] std::string name_new(std::span<const std::uint64_t> digests, Version version);

  [[nodiscard]] std::size_t tensors() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
  std::vector<bool> named_;
};

}  // namespace holdfast::train
