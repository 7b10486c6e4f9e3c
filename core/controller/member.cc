#include "core/controller/member.h"

#include <array>

namespace holdfast::controller {

std::optional<SeatState> after(SeatState state, SeatEvent event) {
  using S = SeatState;
  using Row = std::array<std::optional<S>, kSeatEvents>;
  constexpr std::nullopt_t kSame = std::nullopt;
  static constexpr std::array<Row, kSeatStates> kTable{{
      // taken over, training ended, died, ended well, lease over, heard, hung up
      /* held     */ {S::kHeld, S::kFinished, S::kDead, S::kDeserted, S::kSilent, kSame, kSame},
      /* silent   */ {S::kHeld, S::kFinished, S::kDead, S::kDeserted, kSame, S::kHeld, kSame},
      /* dead     */ {S::kHeld, kSame, kSame, kSame, kSame, kSame, kSame},
      /* finished */ {S::kHeld, kSame, S::kOrphaned, S::kLeft, S::kLeft, kSame, S::kLeft},
      /* orphaned */ {S::kHeld, kSame, kSame, S::kLeft, S::kLeft, kSame, kSame},
      /* left     */ {S::kHeld, kSame, kSame, kSame, kSame, kSame, kSame},
      /* deserted */ {S::kHeld, kSame, kSame, kSame, kSame, kSame, kSame},
  }};
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)];
}

const char* name(SeatState state) {
  constexpr std::array<const char*, kSeatStates> kNames = {
      "held", "silent", "dead", "finished", "orphaned", "left", "deserted"};
  return kNames[static_cast<std::size_t>(state)];
}

const char* name(SeatEvent event) {
  constexpr std::array<const char*, kSeatEvents> kNames = {
      "taken over", "training ended", "died", "ended well", "lease over", "heard", "hung up"};
  return kNames[static_cast<std::size_t>(event)];
}

}  // namespace holdfast::controller
