#include "runtime/scheduler/taken_places.h"

#include <utility>

#include "base/text.h"
#include "wording/reasons.h"

namespace holdfast::runtime {

std::optional<std::string> TakenPlaces::note(const controller::Note& note) {
  const controller::Seeker& who = note.seeker;
  Seeker seeker{.who = who,
                .waits = note.reason.kind == wire::Reason::Kind::kLeased,
                .why = wording::in_words(note.reason)};
  if (named_.size() >= kNamed) return std::nullopt;
  if (!named_.emplace(who.node_id, who.host, who.pid, seeker.waits).second) return std::nullopt;
  std::string line = cat("worker '", who.node_id, "' (process ", who.pid, " on ", who.host, ") ",
                         seeker.waits ? "waits: " : "is refused: ", seeker.why,
                         named_.size() == kNamed ? "; further ones are not named" : "");
  newest_.push_back(std::move(seeker));
  if (newest_.size() > kShown) newest_.pop_front();
  return line;
}

}  // namespace holdfast::runtime
