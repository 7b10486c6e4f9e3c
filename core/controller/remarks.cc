#include "core/controller/remarks.h"

#include <algorithm>
#include <utility>

namespace holdfast::controller {

using wire::kMaxRemarks;
using wire::Reason;

void Remarks::tell(Rank rank, const wire::Reason& what) {
  if (all_.size() == kMaxRemarks) return;
  // The last one says that there are no more.
  const bool is_last = all_.size() + 1 == kMaxRemarks;
  all_.push_back({job_.unix_ms, is_last ? Reason{.kind = Reason::Kind::kTooManyRemarks} : what});
  Store store{.formation = {}, .seats = {}, .kept = {}, .writers = {}};
  store.remarks.emplace(all_.size(), all_.back());
  job_.emit(std::move(store));
  job_.note(Note::Kind::kRemark, rank, all_.back().what);
  tell_again();
}

void Remarks::tell_again() {
  if (all_.empty()) return;
  for (auto& [link, agent] : job_.agents.here()) {
    // More than there are: of a former journal of this job.
    agent.remarks = std::min<std::uint64_t>(agent.remarks, all_.size());
    while (agent.remarks < all_.size()) {
      const Reason& next = all_[agent.remarks++].what;
      job_.send(link, wire::Waiting{next, agent.remarks});
    }
  }
}

void Remarks::restore(std::vector<wire::Remarked> kept) {
  kept.resize(std::min(kept.size(), kMaxRemarks));
  all_ = std::move(kept);
}

}  // namespace holdfast::controller
