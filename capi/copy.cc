// hf_copy() of c.h.
#include <cstdint>
#include <cstring>

#include "collective/sum.h"
#include "include/holdfast/c.h"

namespace {

using Word = std::int32_t;                 // As it is, whatever it holds: it is not added up.
constexpr std::uint64_t kLong = 4096;      // Below, the end of a pass past the caches costs more.
constexpr std::uintptr_t kAlignment = 16;  // Of what is written past them.
static_assert(kAlignment % alignof(Word) == 0);

bool is_at_multiple(const void* p, std::uintptr_t of) {
  return reinterpret_cast<std::uintptr_t>(p) % of == 0;
}

void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  std::uint64_t done = 0;
  if (bytes >= kLong && is_at_multiple(to, kAlignment) && is_at_multiple(from, alignof(Word))) {
    const std::uint64_t words = bytes / sizeof(Word);
    holdfast::collective::sum_past_caches(to, {&from, 1}, words,
                                          holdfast::collective::Element::kInt32);
    done = words * sizeof(Word);
  }
  if (done < bytes) std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

void hf_copy(uint64_t count, void* const* to, const void* const* from, const uint64_t* bytes) {
  for (std::uint64_t i = 0; i < count; ++i) {
    copy(static_cast<std::byte*>(to[i]), static_cast<const std::byte*>(from[i]), bytes[i]);
  }
}
