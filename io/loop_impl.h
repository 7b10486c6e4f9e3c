// The parts of a Loop. For io/ only, so that no other room compiles asio.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "io/loop.h"

namespace holdfast::io {

struct Loop::Impl {
  // Our own queue over one asio timer. It runs ties in order, and never runs what was cancelled.
  // Asio's timers promise neither.
  using Due = std::pair<Instant, std::uint64_t>;
  std::map<Due, Task> queue;
  std::map<std::uint64_t, Instant> when_of;
  std::uint64_t newest_timer = 0;

  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> stay = asio::make_work_guard(context);
  asio::steady_timer alarm{context};
  std::vector<std::unique_ptr<asio::signal_set>> signals;
  std::atomic<std::thread::id> runner;

  // The tasks that were posted. Asio's own queue is not used, because it wakes the loop while it
  // holds a lock: a loop that runs at once would wait for the poster again.
  std::mutex posted_mutex;
  std::deque<Task> posted;
  asio::posix::stream_descriptor bell{context};  // An eventfd.

  Impl();
  void ring() const;
  void await_bell();
  void run_posted();
  // Asserts that the caller may touch what belongs to the loop.
  void check_thread() const;
  void set_alarm();
  void run_due_timers();
  void wait_for_signal(asio::signal_set& set, std::function<void(int)> handler);
  using Descriptor = std::shared_ptr<asio::posix::stream_descriptor>;
  static void wait_for_exit(const Descriptor& child, std::function<void(os::Exit)> handler);
};

}  // namespace holdfast::io
