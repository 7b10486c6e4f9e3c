#include "train/replicas.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "runtime/worker/arena_store.h"
#include "train/job.h"

namespace holdfast::train {
namespace {

using collective::Outcome;

std::uint64_t nanoseconds(std::chrono::steady_clock::duration d) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(d).count());
}

}  // namespace

Replicas::Replicas(runtime::Worker& worker, runtime::Session& session,
                   std::vector<std::string> names)
    : worker_(worker), session_(session), differences_(std::move(names)) {
  digests_.resize(differences_.tensors());
}

bool Replicas::is_due(bool at_end) const {
  return session_.identity().world_size > 1 &&
         pace_.is_due(session_.generation(), session_.version(), at_end);
}

Outcome Replicas::before_step() {
  const Clock::time_point now = Clock::now();
  if (session_.version() == following_) {
    const std::uint64_t step = nanoseconds(now - left_);
    mine_.step = mine_.step == 0 ? step : std::min(mine_.step, step);
  }
  const Outcome outcome = is_due(false) ? compare() : Outcome::kDone;
  following_ = session_.version() + 1;
  left_ = Clock::now();
  return outcome;
}

void Replicas::at_end() {
  while (is_due(true)) {
    // A rank has ended its training, so it had made this comparison: so had all ranks.
    if (detail::must(session_.begin_step()) == runtime::Began::kTooLate) return;
    following_ = kNoVersion;  // The time until the next before_step() is not that of a step.
    const Outcome outcome = compare();
    if (outcome == Outcome::kMismatch) detail::fail(worker_, session_.group()->why());
    if (outcome != Outcome::kAborted) return;
  }
}

void Replicas::read() {
  arena::Arena& arena = runtime::arena_of(session_);
  const std::size_t parameters = arena.layout().parameters.size();
  for (std::size_t t = 0; t < digests_.size(); ++t) {
    const std::size_t i = t % parameters;
    const auto values = t < parameters ? arena.parameter(i) : arena.moment(t / parameters - 1, i);
    digests_[t] = digest(std::as_bytes(values));
  }
}

Outcome Replicas::compare() {
  const auto ranks = static_cast<std::size_t>(session_.identity().world_size);
  const Clock::time_point began = Clock::now();
  read();
  const Clock::time_point have_read = Clock::now();
  mine_.digest = digest(std::as_bytes(std::span(digests_)));
  mine_.read = nanoseconds(have_read - began);
  std::vector<Reading> readings(ranks);
  Outcome outcome = session_.all_gather(std::as_bytes(std::span(&mine_, 1)),
                                        std::as_writable_bytes(std::span(readings)));
  if (outcome != Outcome::kDone) return outcome;
  mine_.exchange = nanoseconds(Clock::now() - have_read);
  mine_.step = 0;
  pace_.compared(session_.generation(), session_.version(), readings);
  const auto same = [&](const Reading& r) { return r.digest == mine_.digest; };
  if (std::all_of(readings.begin(), readings.end(), same)) return outcome;
  std::vector<std::uint64_t> all(ranks * digests_.size());
  outcome = session_.all_gather(std::as_bytes(std::span(digests_)),
                                std::as_writable_bytes(std::span(all)));
  if (outcome != Outcome::kDone) return outcome;
  report(differences_.name_new(all, session_.version()));
  return outcome;
}

void Replicas::report(const std::string& difference) {
  if (difference.empty()) return;
  constexpr const char* kCure =
      "do the same to parameters and gradients on every rank (gradients are clipped by "
      "StepsOptions::clip_norm)";
  if (worker_.settings().drift == config::Drift::kEnd) {
    detail::fail(worker_, cat(difference, ": ", kCure,
                              ", or set HOLDFAST_DRIFT=warn to go on all the same"));
  }
  if (session_.identity().rank != 0) return;
  std::fprintf(stderr, "holdfast: warning: %s: %s\n", difference.c_str(), kCure);
}

}  // namespace holdfast::train
