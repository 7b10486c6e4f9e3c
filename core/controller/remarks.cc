#include "core/controller/remarks.h"

namespace holdfast::controller {

using wire::Reason;
void Remarks::tell(Rank rank, const wire::Reason& what) {
  if (all_.size() == kMost) return;
  // The last one says that there are no more.
  all_.push_back(all_.size() + 1 < kMost ? what : Reason{.kind = Reason::Kind::kTooManyRemarks});
  job_.note(Note::Kind::kRemark, rank, all_.back());
  tell_again();
}

void Remarks::tell_again() {
  if (all_.empty()) return;
  for (const auto& [link, agent] : job_.agents.here()) {
    std::size_t& told = told_[agent.agent_id];
    for (; told < all_.size(); ++told) job_.send(link, wire::Waiting{all_[told]});
  }
}

}  // namespace holdfast::controller
