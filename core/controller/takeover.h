// Whether a scheduler that starts goes on with the formation in its journal (P30).
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "wire/formation.h"

namespace holdfast::controller {

// What a scheduler knows of itself when it starts.
struct Candidate {
  std::uint64_t attempt = 0;   // As of wire::Register; 0: no agent has started it.
  bool by_hand_again = false;  // MS_ENABLE_RECOVERY: the user says that it is the same run.
  std::uint64_t run = 0;       // HOLDFAST_RUN, drawn by the agent for the run; 0: none.
  std::int32_t world_size = 0;
  bool of_others = false;  // With etcd: others have begun and served that run.
};

// Whether a predecessor of this run may have left a journal, and may still be dying. A first
// attempt is of a new agent, whose processes are all new.
[[nodiscard]] bool may_succeed(const Candidate& candidate);

// How long a scheduler that can not serve yet tries again, before it ends with the reason. The
// workers of a successor wait for it for `limit`, so it tries for as long (P46).
struct Patience {
  Duration port{};  // Another process has it: a dying predecessor, or a stranger.
  Duration
      tls{};  // Its certificate, key or list can not be used. Meanwhile its processes hear why.
};
[[nodiscard]] Patience patience_of(const Candidate& candidate, Duration limit);

enum class Takeover : std::uint8_t {
  kBegin,      // The journal is empty, or of another run: begin a new formation.
  kEnded,      // The same, but of the run of others: it has ended just now.
  kGoOn,       // With the one in the journal.
  kOtherSize,  // Its world has another size than the candidate's: refuse.
};
[[nodiscard]] Takeover choose_takeover(const Candidate& candidate,
                                       const std::optional<wire::Formation>& stored);

}  // namespace holdfast::controller
