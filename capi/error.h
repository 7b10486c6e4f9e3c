// Errors of this room: a status for the caller, and the sentence that hf_last_error() gives.
#pragma once

#include <string>

#include "base/result.h"
#include "collective/outcome.h"
#include "include/holdfast/c.h"

namespace holdfast::capi {

[[nodiscard]] Error user_error(std::string what);

// Keeps the sentence for this thread's hf_last_error() and gives the status.
hf_status report(hf_status status, const std::string& what);
hf_status report(const Error& error);
hf_status report(const Status& status);
hf_status report(const Result<collective::Verdict>& verdict);
// For a catch (...) around all that a function of c.h does: C knows no exceptions.
hf_status report_caught();

}  // namespace holdfast::capi
