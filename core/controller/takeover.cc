#include "core/controller/takeover.h"

namespace holdfast::controller {
namespace {

// Of processes that were started by hand together, all have asked by then.
constexpr Duration kToTellAll = std::chrono::seconds(10);

}  // namespace

bool may_succeed(const Claim& claim) {
  return claim.attempt > 1 || (claim.attempt == 0 && claim.by_hand_again);
}

// A first one of an agent has nobody to wait for it: its agent ends the job with its reason.
Patience patience_of(const Claim& claim, Duration limit) {
  if (may_succeed(claim)) return {.port = limit, .tls = limit};
  return {.tls = claim.attempt == 0 ? kToTellAll : Duration{}};
}

// A predecessor of ours may have died before it had stored anything: then what is found is an older
// job's of the same name.
Takeover judge(const Claim& claim, const std::optional<wire::Formation>& stored) {
  if (!may_succeed(claim) || !stored) return Takeover::kBegin;
  if (claim.run != 0 && stored->run_id != claim.run) return Takeover::kBegin;
  const bool known = !stored->roster.empty();
  if (known && stored->roster.size() != static_cast<std::size_t>(claim.world_size)) {
    return Takeover::kOtherSize;
  }
  return Takeover::kGoOn;
}

}  // namespace holdfast::controller
