// `holdfast drain` and `holdfast move`.
#include <string>

#include "apps/ask.h"
#include "apps/commands.h"

namespace holdfast::apps {

int move(const std::string& job, const std::string& from, const std::string& to, bool drains,
         int timeout_s) {
  return give_order<wire::Moved>(job, wire::Move{from, to, drains}, wire::Reason::Kind::kMoves,
                                 std::chrono::seconds(timeout_s));
}

}  // namespace holdfast::apps
