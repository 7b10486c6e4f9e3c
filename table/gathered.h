// Gathered: the keys that were added since the last step, each once, in the order in which they
// first came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace holdfast::table {

class Gathered {
 public:
  [[nodiscard]] std::span<const std::uint64_t> keys() const { return keys_; }

  // The key's place among keys(), and whether it is new there.
  std::pair<std::size_t, bool> place_of(std::uint64_t key) {
    if (2 * (keys_.size() + 1) > entries_.size()) grow();
    std::uint32_t& entry = entry_of(key);
    if (entry != 0) return {entry - 1, false};
    keys_.push_back(key);
    entry = static_cast<std::uint32_t>(keys_.size());
    return {keys_.size() - 1, true};
  }
  void forget_last() {
    entry_of(keys_.back()) = 0;
    keys_.pop_back();
  }
  void clear() {
    // Entries lie where their keys say: it takes as long as the keys are many, not the entries.
    // Backwards, so that the way to an entry never leads over one that is gone.
    while (!keys_.empty()) forget_last();
  }

 private:
  std::uint32_t& entry_of(std::uint64_t key) {
    std::size_t at = mix(key) & (entries_.size() - 1);
    while (entries_[at] != 0 && keys_[entries_[at] - 1] != key)
      at = (at + 1) & (entries_.size() - 1);
    return entries_[at];
  }
  void grow() {
    entries_.assign(entries_.empty() ? 1024 : 2 * entries_.size(), 0);
    for (std::size_t k = 0; k < keys_.size(); ++k) {
      entry_of(keys_[k]) = static_cast<std::uint32_t>(k + 1);
    }
  }

  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> entries_;  // A place in keys_ + 1; 0: none. A power of two of them.
};

}  // namespace holdfast::table
