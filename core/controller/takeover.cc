#include "core/controller/takeover.h"

namespace holdfast::controller {
namespace {

// Time in which all processes that were started together by hand have connected, and been told why.
constexpr Duration kToTellAll = std::chrono::seconds(10);

}  // namespace

bool may_succeed(const Candidate& candidate) {
  return candidate.attempt > 1 || (candidate.attempt == 0 && candidate.by_hand_again);
}

// An agent's first scheduler does not try again: its agent ends the job with the reason.
Patience patience_of(const Candidate& candidate, Duration limit) {
  if (may_succeed(candidate)) return {.port = limit, .tls = limit};
  return {.tls = candidate.attempt == 0 ? kToTellAll : Duration{}};
}

// A predecessor of this run may have died before it stored anything: then the journal is that of an
// older job with the same name.
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
