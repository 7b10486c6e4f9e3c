// digest(bytes): 64 bits that tell whether two copies are equal. Digest: that of bytes that come in
// pieces. Not for secrets.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace holdfast {

inline std::uint64_t digest(std::span<const std::byte> bytes, std::uint64_t seed = 0) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

// Its value is the digest() of all bytes that were added.
class Digest {
 public:
  Digest() { XXH3_64bits_reset(&state_); }
  void add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(&state_, bytes.data(), bytes.size());
  }
  [[nodiscard]] std::uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace holdfast
