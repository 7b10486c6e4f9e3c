// Errors of this room: a status for the caller, and the sentence that hf_last_error() gives.
#pragma once

#include <string>

#include "base/result.h"
#include "include/holdfast/c.h"

namespace holdfast::capi {

// What an operation came to.
struct Verdict {
  hf_status status = HF_OK;
  std::string what;  // Unless HF_OK.
};

[[nodiscard]] Verdict verdict_of(const Error& error);
[[nodiscard]] Verdict user_error(std::string what);

// Keeps the sentence for this thread's hf_last_error() and gives the status.
hf_status report(const Verdict& verdict);
hf_status report(const Error& error);
[[nodiscard]] const char* last_error();

}  // namespace holdfast::capi
