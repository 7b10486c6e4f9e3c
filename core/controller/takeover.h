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
  std::uint64_t attempt = 0;   // As in wire::Register; 0: no agent has started it.
  bool by_hand_again = false;  // MS_ENABLE_RECOVERY: the user says that it is the same run.
  std::uint64_t run = 0;       // HOLDFAST_RUN, drawn by the agent for the run; 0: none.
  std::int32_t world_size = 0;
  bool of_others = false;  // With etcd: other schedulers have begun and served this run.
};

// Whether this run may have had a scheduler before, which has left a journal and may still be
// dying. A first attempt under an agent has none before it: the agent and all its processes are
// new.
[[nodiscard]] bool may_succeed(const Candidate& candidate);

// How long a scheduler that can not serve yet keeps trying before it ends with the reason. Workers
// wait for a successor for `limit`, so a successor tries for as long (P46).
struct Patience {
  Duration port{};  // While another process has the port: a dying predecessor, or a stranger.
  Duration
      // While its certificate, key or revocation list can not be used. Processes that come hear
      // why.
      tls{};
};
[[nodiscard]] Patience patience_of(const Candidate& candidate, Duration limit);

enum class Takeover : std::uint8_t {
  kBegin,      // There is no journal of this run: begin a new formation.
  kEnded,      // There is no journal any more: others have served this run, and it has ended.
  kGoOn,       // Go on with the formation in the journal.
  kOtherSize,  // Its world has another size than the candidate's: refuse.
};
[[nodiscard]] Takeover choose_takeover(const Candidate& candidate,
                                       const std::optional<wire::Formation>& stored);

}  // namespace holdfast::controller
