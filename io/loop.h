// Loop: one thread waits for sockets, timers, children and posted tasks, and calls back.
//
// All callbacks of a Loop run one after the other, in the thread that is inside run(). None runs
// inside the call that asked for it. Decides nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "os/spawn.h"

namespace holdfast::io {

class Loop {
 public:
  using Task = std::function<void()>;
  enum class TimerId : std::uint64_t { kNone = 0 };  // Never given twice by one Loop.

  Loop();
  // Requires: no thread is inside run(), and nobody holds a Connection or a Listener of this loop.
  // Drops tasks and callbacks that have not run. Waits for a name lookup that connect() has begun.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs `task` in the loop's thread, in order of posting. From any thread.
  void post(Task task);

  // Runs `task` once, at `when` or later. A time in the past counts as now. Due timers run in order
  // of (when, id). Call it in the loop's thread, or while no thread runs the loop.
  TimerId at(Instant when, Task task);
  TimerId after(Duration delay, Task task);
  // The timer's task will not run. Unknown and past ids are ignored. Call it where at() may be
  // called.
  void cancel(TimerId id);

  // While the loop lives, each of these signals calls `handler` in the loop with its number, in
  // place of its default action. Call it where at() may be called.
  void on_signals(const std::vector<int>& signals, std::function<void(int)> handler);

  // Calls `handler` once, in the loop, when the child has ended; then it is reaped, in another
  // thread (os::reap_later). Copies the descriptor. Call it where at() may be called. Throws
  // std::system_error if no descriptor is free.
  void on_exit(int pidfd, std::function<void(os::Exit)> handler);

  // CLOCK_MONOTONIC. From any thread.
  static Instant now();

  // Runs callbacks until stop(). May be called again after it has returned.
  void run();
  // Makes run() return after its current callback. If no run() is under way, the next one returns
  // at once. From any thread.
  void stop();

  // What only io/ sees.
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::io
