#include "runtime/worker/sentinel.h"

#include <signal.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "os/errors.h"
#include "os/slice.h"
#include "runtime/jobs/given_paths.h"

namespace holdfast::runtime {

Result<std::unique_ptr<Sentinel>> Sentinel::start(const config::Settings& settings) {
  if (settings.lifeline.empty()) return std::unique_ptr<Sentinel>();
  std::unique_ptr<Sentinel> sentinel(new Sentinel);
  sentinel->owner_ = ::getpid();
  // A signal that means the program must not be taken by this thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int error_number = 0;
  try {
    sentinel->thread_ = std::thread([s = sentinel.get(), &settings] { s->hold(settings); });
  } catch (const std::system_error& error) {
    error_number = error.code().value();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error_number != 0) return os::no_task("cannot make a thread", error_number);
  sentinel->phase_.wait(Phase::kStarting);
  if (!sentinel->held_) return sentinel->held_.error();
  return sentinel;
}

// `settings` live until the phase is kHolding, and no longer.
void Sentinel::hold(const config::Settings& settings) {
  thread_id_ = ::gettid();
  take_short_slice();
  const auto lifeline = hold_lifeline(settings);
  if (!lifeline) held_ = lifeline.error();
  if (lifeline && *lifeline) lifeline_ = &**lifeline;
  phase_ = Phase::kHolding;
  phase_.notify_all();
  phase_.wait(Phase::kHolding);
}

void Sentinel::note(Version version) const {
  if (lifeline_ != nullptr && owner_ == ::getpid()) lifeline_->note(version);
}

void Sentinel::take_short_slice() const {
  (void)os::take_short_slice(thread_id_);
}

Sentinel::~Sentinel() {
  if (owner_ != ::getpid()) {
    // The thread is not there, and where its stack was may be nothing by now: the child's own
    // threads come and go in such places. So its handle is left alone, for ever.
    (void)new std::thread(std::move(thread_));
    return;
  }
  phase_ = Phase::kOver;
  phase_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace holdfast::runtime
