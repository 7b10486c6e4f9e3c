// The bytes of an arena file: header, one slot for each thread of an update, layout text, regions.
//
// Words that change while others may read them are read and written through std::atomic_ref.
// Numbers are in the host's byte order, because the file never leaves its host.
//
//   0       Header
//   4096    Slot[kSlots]
//   12288   layout text, then to the next page: zeros
//   ...     gradients, parameters, moments (Layout::*_offset), two slots of private bytes
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "arena/arena.h"
#include "arena/layout.h"
#include "os/lost_pages.h"

namespace holdfast::arena {

inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kMagic = 0x6172656e61466421;  // "!dFanera" in memory
inline constexpr std::uint64_t kFormat = 4;
inline constexpr std::size_t kSlots = 16;     // The most threads an update runs on.
inline constexpr std::size_t kUndoLines = 3;  // parameters and up to two moments

// Never changes after the file got its name.
struct Fixed {
  std::uint64_t magic = kMagic;
  std::uint64_t format = kFormat;
  std::uint64_t run_id = 0;
  std::uint64_t fingerprint = 0;  // Layout::fingerprint(): the digest of the layout text.
  std::uint64_t layout_bytes = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t check = 0;  // Digest of all above.
};

struct Record {
  Position position;
  UpdateArguments arguments;
  Parts used;  // The ranges of private bytes that are in use; none: all.
};

struct Header {
  Fixed fixed;
  // If updating == version + 1, an update has begun, and whoever opens the file must finish it.
  // `updating` is not reset, because the store of `version` ends the update.
  std::uint64_t version;  // kNoVersion: nothing below means anything.
  std::uint64_t staged;   // version or version + 1
  std::uint64_t updating;
  std::uint64_t threads;  // Slots in use by the update begun.
  Record records[2];      // The record of version v is records[v % 2].
  os::LossList losses;    // Of the file's part from the gradients on.
};
static_assert(sizeof(Header) <= kPageBytes);

// One thread's part of an update: the lines [progress / 2, end). If progress is odd, the first of
// them is open, and `undo` holds its old contents.
struct Slot {
  alignas(128) std::uint64_t progress;
  std::uint64_t end;
  pthread_mutex_t alive;  // Robust; held by the thread that works on this slot.
  alignas(128) float undo[kUndoLines][kLineFloats];
};
static_assert(sizeof(Slot) == 512);

inline constexpr std::uint64_t kSlotsOffset = kPageBytes;
inline constexpr std::uint64_t kLayoutOffset = kSlotsOffset + kSlots * sizeof(Slot);

// When SIGKILL ends a thread, only the order of its stores counts. Those that retired are in the
// page cache, and the others never happened. So only the compiler has to keep the order.
inline void keep_order() {
  asm volatile("" ::: "memory");
}

inline std::uint64_t load(const std::uint64_t& word) {
  // atomic_ref wants a mutable object, although it only reads.
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

// When `word` changes, all earlier stores are in the file, and no later ones.
inline void publish(std::uint64_t& word, std::uint64_t value) {
  keep_order();
  std::atomic_ref(word).store(value, std::memory_order_release);
  keep_order();
}

}  // namespace holdfast::arena
