// Says for people what the machines say as enums.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "core/trainer/machine.h"

namespace holdfast::runtime {

// Why rank `rank`'s training can not go on, in one sentence.
[[nodiscard]] std::string in_words(const trainer::Failure& failure, Rank rank);

// The error for a program whose call has ended with a result that is none of the good ones.
[[nodiscard]] Error error_of(const trainer::Return& result, Rank rank);

}  // namespace holdfast::runtime
