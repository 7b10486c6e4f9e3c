// hf_digest() of c.h.
#include "base/digest.h"

#include <cstdint>

#include "include/holdfast/c.h"

void hf_digest(uint64_t count, const void* const* data, const uint64_t* bytes, uint64_t* digests) {
  for (std::uint64_t i = 0; i < count; ++i) {
    digests[i] = holdfast::digest({static_cast<const std::byte*>(data[i]), bytes[i]});
  }
}
