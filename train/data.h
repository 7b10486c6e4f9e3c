// Computes which samples a rank takes in which step: a pure function, so that any step can be made
// again with the same samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace holdfast::train {

// A permutation of 0 .. size-1 that needs no memory: each element is computed by itself.
class Permutation {
 public:
  Permutation(std::uint64_t seed, std::uint64_t size);
  [[nodiscard]] std::uint64_t operator()(std::uint64_t i) const;  // Requires: i < size.

 private:
  std::uint64_t seed_;
  std::uint64_t size_;
  unsigned half_bits_;
};

struct Sharding {
  std::uint64_t samples = 0;  // In the data set.
  std::uint64_t batch = 0;    // Per rank and step.
  std::uint64_t ranks = 1;
  std::uint64_t seed = 0;

  // Complete steps only: samples that are left over are not used in this epoch.
  [[nodiscard]] std::uint64_t steps_per_epoch() const { return samples / (batch * ranks); }
  // Sample numbers of step `index` (from 0) of an epoch for one rank. No sample comes
  // twice in an epoch, whichever step or rank it is for.
  [[nodiscard]] std::vector<std::size_t> indices(std::uint64_t epoch, std::uint64_t index,
                                                 std::uint64_t rank) const;
};

// A digest of the samples that a step takes; their order does not matter. It is the sum of a hash
// of each sample, so the digests of an epoch's steps add up to the digest of all its samples.
[[nodiscard]] std::uint64_t digest_of(std::span<const std::size_t> samples);

}  // namespace holdfast::train
