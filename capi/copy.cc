// hf_copy() of c.h.
#include <cstddef>
#include <cstdint>

#include "collective/reduce.h"
#include "include/holdfast/c.h"

void hf_copy(uint64_t count, void* const* to, const void* const* from, const uint64_t* bytes) {
  for (std::uint64_t i = 0; i < count; ++i) {
    holdfast::collective::copy_past_caches(static_cast<std::byte*>(to[i]),
                                           static_cast<const std::byte*>(from[i]), bytes[i]);
  }
}
