// What a memory error has taken of an arena, as far as its rank needs it to go on.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/arena.h"
#include "arena/layout.h"
#include "base/ids.h"
#include "os/lost_pages.h"

namespace holdfast::arena {

struct Damage {
  // Ranges of the file, ascending, without what is not needed: other ranks have the same there.
  std::vector<Range> shared;
  bool is_private = false;  // Some of what only this rank has is lost.
  std::uint64_t count = 0;  // Arena::losses() of which this is known; there may be more by now.

  [[nodiscard]] bool any() const { return is_private || !shared.empty(); }
};

// What is listed now. The handler may add to the list meanwhile: what is counted here is complete.
[[nodiscard]] os::LossList losses_of(const Arena& arena);

// The damage to `arena`: to its committed version, and to a staged one. `shared_bytes`: so many of
// the first private bytes are the same on all ranks. `may_have_updated`: an update may have used
// pages after they were lost. Then what it made of them is lost as well: the same lines of the
// parameters and of each moment.
[[nodiscard]] Damage damage_of(const Arena& arena, std::uint64_t shared_bytes,
                               bool may_have_updated);

}  // namespace holdfast::arena
