#include "train/data.h"

#include <bit>

#include "base/assert.h"
#include "base/prng.h"

namespace holdfast::train {

Permutation::Permutation(std::uint64_t seed, std::uint64_t size) : seed_(seed), size_(size) {
  const auto bits = static_cast<unsigned>(std::bit_width(size > 0 ? size - 1 : 0));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

// A Feistel network permutes all numbers with an even number of bits, whatever its rounds compute.
// A result outside of the range goes through the network again (cycle walking): at most 4 passes on
// average.
std::uint64_t Permutation::operator()(std::uint64_t i) const {
  HF_ASSERT(i < size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = i >> half_bits_;
    std::uint64_t right = i & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t next = left ^ (derive(seed_, round, right) & mask);
      left = right;
      right = next;
    }
    i = left << half_bits_ | right;
  } while (i >= size_);
  return i;
}

std::vector<std::size_t> Sharding::indices(std::uint64_t epoch, std::uint64_t index,
                                           std::uint64_t rank) const {
  const Permutation order(derive(seed, epoch), samples);
  const std::uint64_t first = (index * ranks + rank) * batch;
  std::vector<std::size_t> result(batch);
  for (std::uint64_t i = 0; i < batch; ++i) result[i] = order(first + i);
  return result;
}

std::uint64_t digest_of(std::span<const std::size_t> samples) {
  std::uint64_t sum = 0;
  for (const std::size_t i : samples) sum += mix(i + 1);
  return sum;
}

}  // namespace holdfast::train
