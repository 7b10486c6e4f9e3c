// The call in which the program waits, and its answer. Once everything is over, every further call
// gets the same answer.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "core/trainer/events.h"
#include "core/trainer/training.h"
#include "wire/messages.h"

namespace holdfast::trainer {

class ProgramCall {
 public:
  enum class Kind : std::uint8_t { kNone, kJoin, kBeginStep, kEndStep, kEnd };

  explicit ProgramCall(Training& training) : training_(training) {}

  // The program has called. Returns false if everything is over: then the call is answered.
  [[nodiscard]] bool begin(Kind kind);
  void answer(Return::What what) { answer(Return{.what = what}); }
  void answer(Return result);
  void finish(Return result);  // Everything is over, with this answer.
  // The job can not go on, for this reason. If the job's end is known already, that is the answer.
  void fail(wire::Reason reason);
  void end_over(wire::Reason reason);  // The job is over.

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] Instant called_at() const { return called_at_; }  // When the newest call came.

 private:
  Training& training_;
  Kind kind_ = Kind::kNone;
  Instant called_at_{};
  std::optional<Return> final_;  // Once kOver: the answer to every further call.
};

}  // namespace holdfast::trainer
