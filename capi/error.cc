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

}  // namespace

Verdict verdict_of(const Error& error) {
  return {status_of(error.blame), error.what};
}

Verdict user_error(std::string what) {
  return {HF_USER, std::move(what)};
}

hf_status report(const Verdict& verdict) {
  if (verdict.status != HF_OK) sentence() = verdict.what;
  return verdict.status;
}

hf_status report(const Error& error) {
  return report(verdict_of(error));
}

const char* last_error() {
  return sentence().c_str();
}

}  // namespace holdfast::capi
