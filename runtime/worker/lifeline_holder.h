// LifelineHolder: a thread that holds the process's lifeline, and sleeps for as long as the process
// lives.
//
// SIGKILL ends a sleeping thread as soon as it wakes up. With its short slice it wakes up at once,
// on busy cores too. A training thread that waits for a core would end only in its turn,
// milliseconds later, and the agent would learn of the death so much later.
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

class LifelineHolder {
 public:
  // Holds HOLDFAST_LIFELINE; null where that is unset. Errors: those of hold_lifeline().
  [[nodiscard]] static Result<std::unique_ptr<LifelineHolder>> start(
      const config::Settings& settings);
  // Takes the short slice. An idle process (a spare) can not have it, so call this again when it is
  // no longer idle.
  void take_short_slice() const;
  // Records that this process has made the step; its agent reads that after the process's end.
  void note(Version version) const;
  void note_ready() const;         // Records that this spare waits for its place.
  void note_end(bool well) const;  // Records how the job has ended.
  [[nodiscard]] pid_t thread_id() const { return thread_id_; }
  ~LifelineHolder();  // Lets go at once. Does nothing in a forked child, which holds nothing.
  LifelineHolder(const LifelineHolder&) = delete;
  LifelineHolder& operator=(const LifelineHolder&) = delete;

 private:
  LifelineHolder() = default;
  void hold(const config::Settings& settings);

  enum class Phase : int { kStarting, kHolding, kOver };
  pid_t owner_ = 0;
  // Written by the thread, until kHolding.
  Status held_;
  pid_t thread_id_ = 0;
  const os::Lifeline* lifeline_ = nullptr;  // Valid until kOver.
  // No condition variable, because in a forked child its destructor would wait for ever.
  std::atomic<Phase> phase_ = Phase::kStarting;
  std::thread thread_;
};

// This process's holder, which exit() destroys. Empty: there is none, or it was let go.
[[nodiscard]] std::unique_ptr<LifelineHolder>& held_lifeline();
// note() and note_end() of held_lifeline(), if there is one. Any thread.
void tell_lifeline(Version version);
void tell_lifeline_of_end(bool well);
// Destroys held_lifeline(): from here on, nobody has to hear of this process's end at once.
void let_go_of_lifeline();

}  // namespace holdfast::runtime
