// The bytes of a table file: a head, and for each table regions that grow. The file is sparse: each
// region begins so far after the one before that it can hold all that the file system can. What is
// not used takes no memory.
//
//   0       Header
//   4096    TableWords[kMostTables]
//   12288   Slot[kSlots]
//   ...     the tables' specifications as text (kTextBytes)
//   ...     for each table: keys, rows and their ages, the touched rows of a step and their
//           gradients, and an index for each size that it may have (Regions)
//
// A row is known by its number: rows are numbered in the order in which they were first written,
// and only the first TableWords::rows of a version count. So a row that is being added is nothing
// until the version is published.
//
// A row's age is the table's clock (Arguments::clock) when it was updated last. A row with an age
// below evicts_before of TableWords::arguments is as good as absent: it reads as one that nobody
// has written, and begins anew when it is touched. Tables::shrink() gives its memory back.
//
// As in arena/format.h, words that change while others may read them go through arena::publish().
#pragma once

#include <pthread.h>

#include <cstdint>

#include "arena/arena.h"
#include "arena/format.h"
#include "table/rules.h"
#include "table/spec.h"

namespace holdfast::table {

inline constexpr std::uint64_t kMagic = 0x656c626174664821;  // "!Hftable" in memory
inline constexpr std::uint64_t kFormat = 3;
inline constexpr std::size_t kSlots = 16;  // The most threads an update runs on.
inline constexpr std::uint64_t kTextBytes = 64 * 1024;

// Never changes after the file got its name.
struct Fixed {
  std::uint64_t magic = kMagic;
  std::uint64_t format = kFormat;
  std::uint64_t run_id = 0;
  std::uint64_t fingerprint = 0;  // The digest of the specifications' text.
  std::uint64_t text_bytes = 0;
  std::uint64_t tables = 0;
  std::uint64_t capacity = 0;  // Bytes that each region can hold at most.
  std::uint64_t check = 0;     // Digest of all above.
};

struct Header {
  Fixed fixed;
  std::uint64_t version;  // As in arena::Header, as are the next three.
  std::uint64_t staged;
  std::uint64_t updating;
  std::uint64_t threads;
  arena::Position positions[2];  // Of version v: positions[v % 2].
};
static_assert(sizeof(Header) <= arena::kPageBytes);

// Of one table. What belongs to version v has the index v % 2.
struct TableWords {
  std::uint64_t rows[2];     // How many rows there are.
  std::uint32_t touched[2];  // How many rows this version's step has touched.
  Arguments arguments[2];    // evicts_before: the highest until now.
  std::uint64_t index;       // Which index is in use, and how far a larger one is filled (index.h).
};
static_assert(kMostTables * sizeof(TableWords) <= 2 * arena::kPageBytes);

// One thread's part of an update: the touched rows [progress / 2, end) of all tables, one table
// after another. If progress is odd, the first of them is open, and `undo` holds its old bytes.
struct Slot {
  alignas(128) std::uint64_t progress;
  std::uint64_t end;
  pthread_mutex_t alive;  // Robust; held by the thread that works on this slot.
  alignas(128) std::byte undo[3 * kMostValues * sizeof(float)];
};

inline constexpr std::uint64_t kWordsOffset = arena::kPageBytes;
inline constexpr std::uint64_t kSlotsOffset = 3 * arena::kPageBytes;
inline constexpr std::uint64_t kTextOffset = kSlotsOffset + kSlots * sizeof(Slot);
inline constexpr std::uint64_t kRegionsOffset =
    (kTextOffset + kTextBytes + arena::kPageBytes - 1) / arena::kPageBytes * arena::kPageBytes;

}  // namespace holdfast::table
