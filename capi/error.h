// Errors of the C interface: a status for the caller, and the sentence that hf_last_error() gives.
#pragma once

#include <string>

#include "base/result.h"
#include "collective/outcome.h"
#include "include/holdfast/c.h"

namespace holdfast::capi {

[[nodiscard]] Error user_error(std::string what);

// report() keeps the sentence for this thread's hf_last_error(), and returns the status.
hf_status report(hf_status status, const std::string& what);
hf_status report(const Error& error);
hf_status report(const Status& status);
hf_status report(const Result<collective::Verdict>& verdict);
// For the catch (...) around the body of every function of c.h: no exception may get into C.
hf_status report_caught();

}  // namespace holdfast::capi
