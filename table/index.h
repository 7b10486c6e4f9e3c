// Index: finds a row's number by its key. It lies in the table file, so a process that replaces
// another has it at once, however many rows there are.
//
// It is an array of 2^bits entries; an entry is a row's number + 1, or 0. A key's entry is the
// first free one from the key's place on. An index that is four fifths full is replaced by one of
// twice the size, in the file beside it: new rows go there, and each step moves some entries of the
// old one, until that is empty. Until then both are searched.
//
// SIGKILL may come at any instruction. To enter a row is one store, and to enter it again changes
// nothing; so an update that was cut short is simply made again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace holdfast::table {

inline constexpr unsigned kFirstBits = 10;
inline constexpr unsigned kLastBits = 32;
inline constexpr std::uint64_t kNoRow = ~std::uint64_t{0};

// TableWords::index: bits, whether an older index of half the size is still in use, and how many of
// that one's entries have moved.
struct IndexState {
  unsigned bits = kFirstBits;
  bool has_older = false;
  std::uint64_t moved = 0;

  [[nodiscard]] static IndexState from(std::uint64_t word) {
    return {static_cast<unsigned>(word & 0xff), (word >> 8 & 1) != 0, word >> 16};
  }
  [[nodiscard]] std::uint64_t word() const {
    return bits | std::uint64_t{has_older} << 8 | moved << 16;
  }
  // Whether a word can be what Index has written.
  [[nodiscard]] static bool is_sound(std::uint64_t word) {
    const auto [bits, has_older, moved] = from(word);
    return from(word).word() == word && bits >= kFirstBits && bits <= kLastBits &&
           (!has_older || bits > kFirstBits) &&
           (has_older ? moved <= (std::uint64_t{1} << (bits - 1)) : moved == 0);
  }
};

// Where the index of each size begins within the index region, in entries.
[[nodiscard]] constexpr std::uint64_t index_offset(unsigned bits) {
  return (std::uint64_t{1} << bits) - (std::uint64_t{1} << kFirstBits);
}

class Index {
 public:
  // `entries`: the index region. `keys`: by row.
  Index(std::uint32_t* entries, const std::uint64_t* keys, std::uint64_t* word)
      : entries_(entries), keys_(keys), word_(word) {}

  // The row of `key` among the first `rows`, or kNoRow.
  [[nodiscard]] std::uint64_t find(std::uint64_t key, std::uint64_t rows) const;
  // Asks the processor for the key's place, for a guess() that comes soon.
  void ask_for(std::uint64_t key) const;
  // The row that is most likely the key's, or kNoRow. Asks the processor for that row's key, for a
  // find() that comes soon.
  [[nodiscard]] std::uint64_t guess(std::uint64_t key) const;

  // For an update that brings `rows` rows to `after`: the bits of the index that it will need,
  // whose memory the caller takes before. The index can hold no more rows: kLastBits + 1.
  [[nodiscard]] unsigned bits_for(std::uint64_t after) const;
  // Enters the rows [from, after) and moves some entries of an older index. May be called again for
  // the same rows. Requires: memory for the indexes up to bits_for(after).
  void grow(std::uint64_t from, std::uint64_t after);
  // The indexes of fewer bits are in use no more.
  [[nodiscard]] unsigned least_bits() const { return state().bits - (state().has_older ? 1 : 0); }

 private:
  [[nodiscard]] IndexState state() const { return IndexState::from(*word_); }
  void enter(unsigned bits, std::uint64_t row);
  [[nodiscard]] std::uint64_t find_in(unsigned bits, std::uint64_t key, std::uint64_t rows) const;

  std::uint32_t* entries_;
  const std::uint64_t* keys_;
  std::uint64_t* word_;
};

}  // namespace holdfast::table
