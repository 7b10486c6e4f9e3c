#include "capi/error.h"

#include <cstddef>
#include <exception>
#include <utility>

#include "base/text.h"

namespace holdfast::capi {
namespace {

thread_local std::string sentence;

// Indexed by Blame and by collective::Outcome.
constexpr hf_status kOfBlame[] = {HF_USER, HF_PEER, HF_WORLD};
constexpr hf_status kOfOutcome[] = {HF_OK, HF_ABORTED, HF_LEFT, HF_MISMATCH};

}  // namespace

Error user_error(std::string what) {
  return {Blame::kUser, std::move(what)};
}

hf_status report(hf_status status, const std::string& what) {
  if (status != HF_OK) sentence = what;
  return status;
}

hf_status report(const Error& error) {
  return report(kOfBlame[static_cast<std::size_t>(error.blame)], error.what);
}

hf_status report(const Status& status) {
  return status ? HF_OK : report(status.error());
}

hf_status report(const Result<collective::Verdict>& verdict) {
  if (!verdict) return report(verdict.error());
  return report(kOfOutcome[static_cast<std::size_t>(verdict->outcome)], verdict->why);
}

hf_status report_caught() {
  try {
    throw;
  } catch (const std::exception& e) {
    return report(HF_WORLD, cat("this process can not go on: ", e.what()));
  } catch (...) {
    return report(HF_WORLD, "this process can not go on: an exception of unknown kind");
  }
}

}  // namespace holdfast::capi

const char* hf_last_error(void) {
  return holdfast::capi::sentence.c_str();
}
