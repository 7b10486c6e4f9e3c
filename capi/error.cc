#include "capi/error.h"

#include <utility>

namespace holdfast::capi {
namespace {

std::string& sentence() {
  thread_local std::string text;
  return text;
}

hf_status status_of(Blame blame) {
  switch (blame) {
    case Blame::kUser:
      return HF_USER;
    case Blame::kPeer:
      return HF_PEER;
    case Blame::kWorld:
      return HF_WORLD;
  }
  return HF_WORLD;
}

hf_status status_of(collective::Outcome outcome) {
  switch (outcome) {
    case collective::Outcome::kDone:
      return HF_OK;
    case collective::Outcome::kAborted:
      return HF_ABORTED;
    case collective::Outcome::kLeft:
      return HF_LEFT;
    case collective::Outcome::kMismatch:
      return HF_MISMATCH;
  }
  return HF_WORLD;
}

}  // namespace

Error user_error(std::string what) {
  return {Blame::kUser, std::move(what)};
}

hf_status report(hf_status status, const std::string& what) {
  if (status != HF_OK) sentence() = what;
  return status;
}

hf_status report(const Error& error) {
  return report(status_of(error.blame), error.what);
}

hf_status report(const Status& status) {
  return status ? HF_OK : report(status.error());
}

hf_status report(const Result<collective::Verdict>& verdict) {
  return verdict ? report(status_of(verdict->outcome), verdict->why) : report(verdict.error());
}

const char* last_error() {
  return sentence().c_str();
}

}  // namespace holdfast::capi
