// Outcome and Verdict: how an operation ended, as a value and with a sentence.
#pragma once

#include <cstdint>
#include <string>

namespace holdfast::collective {

enum class Outcome : std::uint8_t {
  kDone,
  kAborted,   // Somebody called abort() before the operation was complete.
  kLeft,      // A rank ended its training in good order and will never come.
  kMismatch,  // The ranks asked for different operations, or a rank's data found no room in
              // Group::Options::directory. No data was exchanged.
};

struct Verdict {
  Outcome outcome = Outcome::kDone;
  std::string why;  // One sentence, unless kDone.
};

}  // namespace holdfast::collective
