#include "core/controller/takeover.h"

namespace holdfast::controller {
namespace {

// Of processes that were started by hand together, all have asked by then.
constexpr Duration kToTellAll = std::chrono::seconds(10);

}  // namespace

bool may_succeed(const Candidate& candidate) {
  return candidate.attempt > 1 || (candidate.attempt == 0 && candidate.by_hand_again);
}

// A first one of an agent has nobody to wait for it: its agent ends the job with its reason.
Patience patience_of(const Candidate& candidate, Duration limit) {
  if (may_succeed(candidate)) return {.port = limit, .tls = limit};
  return {.tls = candidate.attempt == 0 ? kToTellAll : Duration{}};
}

// A predecessor of ours may have died before it had stored anything: then what is found is an older
// job's of the same name.
Takeover choose_takeover(const Candidate& candidate, const std::optional<wire::Formation>& stored) {
  const bool is_another = stored && candidate.run != 0 && stored->run_id != candidate.run;
  if (!may_succeed(candidate) || !stored || is_another) {
    return candidate.of_others ? Takeover::kEnded : Takeover::kBegin;
  }
  const bool known = !stored->roster.empty();
  if (known && stored->roster.size() != static_cast<std::size_t>(candidate.world_size)) {
    return Takeover::kOtherSize;
  }
  return Takeover::kGoOn;
}

}  // namespace holdfast::controller
