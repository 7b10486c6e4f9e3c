// The arena as a StateStore.
#pragma once

#include <memory>

#include "arena/arena.h"
#include "runtime/worker/session.h"
#include "runtime/worker/state_store.h"

namespace holdfast::runtime {

// What happens to private bytes when a rank receives its state from another rank.
enum class Secrecy : std::uint8_t {
  kShared,  // They are copied, too: version 0 is rank 0's on all ranks.
  kOwn,  // Not copied: version 0 is each rank's own; only the rank and its holder have a later one.
  kOwnLater,  // Version 0 is rank 0's on all ranks; a later one is as with kOwn.
};

// For Session::open: opens this rank's arena in the job's folder, once no thread of the rank's
// predecessor can write to it (ownership.h). `common_bytes`, for kOwn: so many of the first private
// bytes are the same on all ranks from version 1 on. `prepared`, `memory`: see Arena::open. Errors:
// those of take_ownership() and Arena::open.
[[nodiscard]] OpenStore in_arena(arena::Layout layout, Secrecy secrecy = Secrecy::kShared,
                                 std::uint64_t common_bytes = 0,
                                 std::unique_ptr<os::Unnamed> prepared = nullptr,
                                 arena::Memory memory = arena::Memory::kAtOnce);

// Memory for a new arena, which takes long to get: the `prepared` of in_arena(). Null: this process
// is no waiting spare that is to prepare (HOLDFAST_PREPARE), or there is no room now.
[[nodiscard]] std::unique_ptr<os::Unnamed> prepare_arena(const Worker& worker,
                                                         const arena::Layout& layout);

// Requires: the session was opened in_arena().
[[nodiscard]] arena::Arena& arena_of(Session& session);

}  // namespace holdfast::runtime
