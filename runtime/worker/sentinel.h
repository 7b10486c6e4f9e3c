// Sentinel: a thread that holds the process's lifeline, and sleeps for as long as the process
// lives.
//
// SIGKILL ends a thread that sleeps as soon as it has been woken up, which the short slice makes
// certain on busy cores too. A training thread that waits for its turn on one would come to its own
// end only in that turn, milliseconds later, and the death would be told so much later.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/ids.h"
#include "base/result.h"
#include "config/settings.h"
#include "os/lifeline.h"

namespace holdfast::runtime {

class Sentinel {
 public:
  // Holds HOLDFAST_LIFELINE; null where that is unset. Errors: those of hold_lifeline().
  [[nodiscard]] static Result<std::unique_ptr<Sentinel>> start(const config::Settings& settings);
  // Takes the short slice, which an idle process (a spare) could not have: it is to be called when
  // that is idle no more.
  void take_short_slice() const;
  // This process has made the step: its agent reads so after its end.
  void note(Version version) const;
  [[nodiscard]] pid_t thread_id() const { return thread_id_; }
  ~Sentinel();  // Lets go, at once. In a forked child, which holds nothing, it does nothing.
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;

 private:
  Sentinel() = default;
  void hold(const config::Settings& settings);

  enum class Phase : int { kStarting, kHolding, kOver };
  pid_t owner_ = 0;
  // Of the thread's, until kHolding.
  Status held_;
  pid_t thread_id_ = 0;
  const os::Lifeline* lifeline_ = nullptr;  // There until kOver.
  // No condition variable: in a forked child its destructor would wait for the thread for ever.
  std::atomic<Phase> phase_ = Phase::kStarting;
  std::thread thread_;
};

}  // namespace holdfast::runtime
