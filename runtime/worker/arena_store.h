// The arena as a StateStore.
#pragma once

#include <memory>

#include "arena/arena.h"
#include "runtime/worker/session.h"
#include "runtime/worker/state_store.h"

namespace holdfast::runtime {

// What becomes of private bytes where a rank has to take its state from another.
enum class Secrecy : std::uint8_t {
  kShared,  // They come along: version 0 is rank 0's on all ranks.
  kOwn,     // Nobody else has them: version 0 is each rank's own, a later one can not be replaced.
  kOwnLater,  // Version 0 is rank 0's on all ranks; a later one is each rank's own.
};

// For Session::open: this rank's arena in the job's folder. So many private bytes, from the first
// on, are not its own: from version 1 on they are the same on all ranks, where Secrecy is kOwn.
// Waits until none of its predecessor's threads can write to it (ownership.h). Errors: those of
// Arena::open. `prepared`: as of Arena::open.
[[nodiscard]] OpenStore in_arena(arena::Layout layout, Secrecy secrecy = Secrecy::kShared,
                                 std::uint64_t common_bytes = 0,
                                 std::unique_ptr<os::Unnamed> prepared = nullptr);

// For in_arena(), of a spare that waits and is to prepare (HOLDFAST_PREPARE): the memory of a new
// arena, which takes long to get. Null: this is none, or there is no room for it now.
[[nodiscard]] std::unique_ptr<os::Unnamed> prepare_arena(const Worker& worker,
                                                         const arena::Layout& layout);

// Requires: the session was opened in_arena().
[[nodiscard]] arena::Arena& arena_of(Session& session);

}  // namespace holdfast::runtime
