#include "runtime/worker/lifeline_holder.h"

#include <signal.h>
#include <unistd.h>

#include <mutex>
#include <system_error>
#include <utility>

#include "os/errors.h"
#include "os/process.h"
#include "os/slice.h"
#include "runtime/jobs/given_paths.h"

namespace holdfast::runtime {

Result<std::unique_ptr<LifelineHolder>> LifelineHolder::start(const config::Settings& settings) {
  if (settings.lifeline.empty()) return std::unique_ptr<LifelineHolder>();
  std::unique_ptr<LifelineHolder> holder(new LifelineHolder);
  holder->owner_ = ::getpid();
  // Signals are for the program's threads, not for this one.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int error_number = 0;
  try {
    holder->thread_ = std::thread([s = holder.get(), &settings] { s->hold(settings); });
  } catch (const std::system_error& error) {
    error_number = error.code().value();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error_number != 0) return os::no_task("cannot make a thread", error_number);
  holder->phase_.wait(Phase::kStarting);
  if (!holder->held_) return holder->held_.error();
  return holder;
}

// Runs in the thread. `settings` live until the phase is kHolding, and no longer.
void LifelineHolder::hold(const config::Settings& settings) {
  thread_id_ = os::this_thread();
  take_short_slice();
  const auto lifeline = hold_lifeline(settings);
  if (!lifeline) held_ = lifeline.error();
  if (lifeline && *lifeline) lifeline_ = &**lifeline;
  phase_ = Phase::kHolding;
  phase_.notify_all();
  phase_.wait(Phase::kHolding);
}

void LifelineHolder::note(Version version) const {
  if (lifeline_ != nullptr && owner_ == ::getpid()) lifeline_->note(version);
}

void LifelineHolder::note_ready() const {
  if (lifeline_ != nullptr && owner_ == ::getpid()) lifeline_->note_ready();
}

void LifelineHolder::note_end(bool well) const {
  if (lifeline_ != nullptr && owner_ == ::getpid()) lifeline_->note_end(well);
}

void LifelineHolder::take_short_slice() const {
  (void)os::take_short_slice(thread_id_);
}

LifelineHolder::~LifelineHolder() {
  if (owner_ != ::getpid()) {
    // The child does not have this thread, and its stack may be gone: the child's own threads may
    // use that place. So its handle is never freed.
    (void)new std::thread(std::move(thread_));
    return;
  }
  phase_ = Phase::kOver;
  phase_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<LifelineHolder>& held_lifeline() {
  static std::unique_ptr<LifelineHolder> holder;
  return holder;
}

// Guards held_lifeline(): the training thread may let go of it while the control thread notes
// something.
static std::mutex& lifeline_mutex() {
  static std::mutex mutex;
  return mutex;
}

void tell_lifeline(Version version) {
  const std::lock_guard lock(lifeline_mutex());
  if (held_lifeline()) held_lifeline()->note(version);
}

void tell_lifeline_of_end(bool well) {
  const std::lock_guard lock(lifeline_mutex());
  if (held_lifeline()) held_lifeline()->note_end(well);
}

void let_go_of_lifeline() {
  const std::lock_guard lock(lifeline_mutex());
  held_lifeline().reset();
}

}  // namespace holdfast::runtime
