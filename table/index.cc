#include "table/index.h"

#include <algorithm>

#include "arena/format.h"
#include "base/prng.h"

namespace holdfast::table {
namespace {

// So many entries of an older index move with each new row, and at least so many in an update. Two
// would do: the new index takes half as many rows until it is full as the older one has entries.
constexpr std::uint64_t kMovedPerRow = 4;
constexpr std::uint64_t kMovedAtLeast = 4096;

constexpr std::uint64_t entries_of(unsigned bits) {
  return std::uint64_t{1} << bits;
}

constexpr bool is_full(std::uint64_t rows, unsigned bits) {
  return rows * 5 > entries_of(bits) * 4;
}

std::uint64_t place_of(std::uint64_t key, unsigned bits) {
  return mix(key) >> (64 - bits);
}

}  // namespace

std::uint64_t Index::find_in(unsigned bits, std::uint64_t key, std::uint64_t rows) const {
  const std::uint32_t* const entries = entries_ + index_offset(bits);
  const std::uint64_t last = entries_of(bits) - 1;
  std::uint64_t at = place_of(key, bits);
  for (std::uint64_t looks = 0; looks <= last; ++looks, at = (at + 1) & last) {
    const std::uint32_t entry = entries[at];
    if (entry == 0) break;
    const std::uint64_t row = entry - 1;
    if (row < rows && keys_[row] == key) return row;
  }
  return kNoRow;
}

std::uint64_t Index::find(std::uint64_t key, std::uint64_t rows) const {
  const IndexState now = state();
  const std::uint64_t row = find_in(now.bits, key, rows);
  return row != kNoRow || !now.has_older ? row : find_in(now.bits - 1, key, rows);
}

void Index::ask_for(std::uint64_t key) const {
  const unsigned bits = state().bits;
  __builtin_prefetch(entries_ + index_offset(bits) + place_of(key, bits));
}

std::uint64_t Index::guess(std::uint64_t key) const {
  const unsigned bits = state().bits;
  const std::uint32_t entry = entries_[index_offset(bits) + place_of(key, bits)];
  if (entry == 0) return kNoRow;
  __builtin_prefetch(keys_ + entry - 1);
  return entry - 1;
}

unsigned Index::bits_for(std::uint64_t after) const {
  unsigned bits = state().bits;
  while (bits <= kLastBits && is_full(after, bits)) ++bits;
  return bits;
}

void Index::enter(unsigned bits, std::uint64_t row) {
  std::uint32_t* const entries = entries_ + index_offset(bits);
  const std::uint64_t last = entries_of(bits) - 1;
  const auto entry = static_cast<std::uint32_t>(row + 1);
  std::uint64_t at = place_of(keys_[row], bits);
  for (std::uint64_t looks = 0; looks < last && entries[at] != 0 && entries[at] != entry; ++looks) {
    at = (at + 1) & last;
  }
  entries[at] = entry;
}

void Index::grow(std::uint64_t from, std::uint64_t after) {
  IndexState now = state();
  const auto move = [&](std::uint64_t most) {
    const unsigned older = now.bits - 1;
    const std::uint64_t end = std::min(entries_of(older), now.moved + most);
    for (std::uint64_t at = now.moved; at < end; ++at) {
      const std::uint32_t entry = entries_[index_offset(older) + at];
      if (entry != 0 && entry - 1 < after) enter(now.bits, entry - 1);  // Else it is damaged.
    }
    now.moved = end;
    if (end == entries_of(older)) now = {.bits = now.bits, .has_older = false, .moved = 0};
    arena::publish(*word_, now.word());
  };
  while (is_full(after, now.bits) && now.bits < kLastBits) {
    if (now.has_older) move(entries_of(now.bits));
    now = {.bits = now.bits + 1, .has_older = true, .moved = 0};
    arena::publish(*word_, now.word());
  }
  for (std::uint64_t row = from; row < after; ++row) enter(now.bits, row);
  if (now.has_older) move(std::max(kMovedAtLeast, kMovedPerRow * (after - from)));
}

}  // namespace holdfast::table
