// Says for people why something happened: the only place where a reason becomes a sentence.
#pragma once

#include <string>

#include "wire/reason.h"

namespace holdfast::wording {

// What follows the name of a process: "was killed by signal 9 (SIGKILL)".
[[nodiscard]] std::string in_words(const wire::Ending& ending);

// Who noticed the fault that is the cause of a recovery, or by what: "the agent of its host". Empty
// if there was none.
[[nodiscard]] std::string seen_by(const wire::Reason& cause);

// One sentence without a full stop: "rank 1 (process 4711) died". kNone: empty.
[[nodiscard]] std::string in_words(const wire::Reason& reason);

}  // namespace holdfast::wording
