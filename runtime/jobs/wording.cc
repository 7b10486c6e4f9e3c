#include "runtime/jobs/wording.h"

#include "base/text.h"

namespace holdfast::runtime {

std::string in_words(const trainer::Failure& failure, Rank rank) {
  using Kind = trainer::Failure::Kind;
  switch (failure.kind) {
    case Kind::kUnprotected:
      return cat("no recovery from a fault after step ", failure.version,
                 ": HOLDFAST_PROTECT is 0, so no step is kept that could be gone back to; start ",
                 "the job again without it");
    case Kind::kNotRepaired:
      return cat("rank ", rank, " could not be brought to version ", failure.version, " (",
                 name(failure.repair),
                 "): ", failure.detail.empty() ? "its arena holds another" : failure.detail);
    case Kind::kNotFormed:
    case Kind::kRefused:
      return failure.detail;
  }
  return "?";
}

Error error_of(const trainer::Return& result, Rank rank) {
  using What = trainer::Return::What;
  if (result.failure) return {Blame::kWorld, in_words(*result.failure, rank)};
  if (result.what == What::kNoCause) {
    return {Blame::kWorld, "the collectives were ended, but the scheduler told of no fault"};
  }
  return {Blame::kWorld, result.reason};
}

}  // namespace holdfast::runtime
