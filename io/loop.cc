#include "io/loop.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <memory>
#include <system_error>
#include <type_traits>
#include <utility>

#include "base/assert.h"
#include "io/loop_impl.h"

namespace holdfast::io {

using Clock = std::chrono::steady_clock;
static_assert(std::is_same_v<Clock::duration, Instant>, "steady_clock is CLOCK_MONOTONIC in ns");

void Loop::Impl::check_thread() const {
  const auto running = runner.load();
  HF_ASSERT(running == std::thread::id() || running == std::this_thread::get_id());
}

Loop::Impl::Impl() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::system_category());
  bell.assign(fd);
  await_bell();
}

void Loop::Impl::ring() const {
  const std::uint64_t one = 1;
  (void)!::write(const_cast<Impl*>(this)->bell.native_handle(), &one, sizeof(one));
}

void Loop::Impl::await_bell() {
  bell.async_wait(asio::posix::stream_descriptor::wait_read, [this](const std::error_code& error) {
    if (error) return;
    std::uint64_t rung = 0;
    (void)!::read(bell.native_handle(), &rung, sizeof(rung));
    await_bell();
    run_posted();
  });
}

void Loop::Impl::run_posted() {
  std::unique_lock lock(posted_mutex);
  // Runs only the tasks that are there now. Those that they post come in the next turn, after the
  // sockets had theirs.
  for (std::size_t left = posted.size(); left > 0 && !context.stopped(); --left) {
    const Task task = std::move(posted.front());
    posted.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
  if (!posted.empty()) ring();
}

void Loop::Impl::set_alarm() {
  if (queue.empty()) {
    alarm.cancel();
    return;
  }
  // At most an hour: asio's sums could overflow near the end of time.
  const Instant latest = Loop::now() + std::chrono::hours(1);
  alarm.expires_at(Clock::time_point(std::min(queue.begin()->first.first, latest)));
  alarm.async_wait([this](const std::error_code& error) {
    if (!error) run_due_timers();
  });
}

void Loop::Impl::run_due_timers() {
  // Runs only the timers that are there now. Those that their tasks add come in the next turn,
  // after the sockets had theirs.
  const Due last{Loop::now(), newest_timer};
  while (!queue.empty() && queue.begin()->first <= last && !context.stopped()) {
    auto entry = queue.extract(queue.begin());
    when_of.erase(entry.key().second);
    entry.mapped()();
  }
  set_alarm();
}

void Loop::Impl::wait_for_signal(asio::signal_set& set, std::function<void(int)> handler) {
  set.async_wait(
      [this, &set, handler = std::move(handler)](const std::error_code& error, int number) {
        if (error) return;
        wait_for_signal(set, handler);
        handler(number);
      });
}

void Loop::Impl::wait_for_exit(const Descriptor& child, std::function<void(os::Exit)> handler) {
  child->async_wait(asio::posix::stream_descriptor::wait_read,
                    [child, handler = std::move(handler)](const std::error_code& error) {
                      if (error) return;
                      const auto exit = os::ended(child->native_handle());
                      if (!exit) return wait_for_exit(child, handler);
                      handler(*exit);
                      os::reap_later(os::Fd(child->release()));
                    });
}

Loop::Loop() : impl_(std::make_unique<Impl>()) {}

Loop::~Loop() {
  HF_ASSERT(impl_->runner.load() == std::thread::id());
  // Tasks may hold sockets, which have to go before the context does.
  const auto dropped = std::exchange(impl_->queue, {});
  const auto unread = std::exchange(impl_->posted, {});
}

void Loop::post(Task task) {
  {
    const std::lock_guard lock(impl_->posted_mutex);
    impl_->posted.push_back(std::move(task));
  }
  impl_->ring();  // Every time, because the poster before may be waiting for a processor before it
                  // rings.
}

Loop::TimerId Loop::at(Instant when, Task task) {
  impl_->check_thread();
  const std::uint64_t id = ++impl_->newest_timer;
  when = std::max(when, now());  // So that what a due timer adds can never be due in the same turn.
  const auto [place, added] = impl_->queue.emplace(Impl::Due{when, id}, std::move(task));
  impl_->when_of.emplace(id, when);
  if (place == impl_->queue.begin()) impl_->set_alarm();
  return TimerId{id};
}

Loop::TimerId Loop::after(Duration delay, Task task) {
  const Instant start = now();
  return at(delay > Instant::max() - start ? Instant::max() : start + delay, std::move(task));
}

void Loop::cancel(TimerId id) {
  impl_->check_thread();
  const auto place = impl_->when_of.find(static_cast<std::uint64_t>(id));
  if (place == impl_->when_of.end()) return;
  impl_->queue.erase({place->second, place->first});  // An alarm too many finds nothing due.
  impl_->when_of.erase(place);
}

void Loop::on_signals(const std::vector<int>& signals, std::function<void(int)> handler) {
  impl_->check_thread();
  auto& set = *impl_->signals.emplace_back(std::make_unique<asio::signal_set>(impl_->context));
  for (const int number : signals) {
    asio::error_code error;
    set.add(number, error);
    HF_ASSERT(!error);
  }
  impl_->wait_for_signal(set, std::move(handler));
}

void Loop::on_exit(int pidfd, std::function<void(os::Exit)> handler) {
  impl_->check_thread();
  const int copy = ::fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw std::system_error(errno, std::system_category());
  Impl::wait_for_exit(std::make_shared<asio::posix::stream_descriptor>(impl_->context, copy),
                      std::move(handler));
}

Instant Loop::now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void Loop::run() {
  HF_ASSERT(impl_->runner.exchange(std::this_thread::get_id()) == std::thread::id());
  // Done also if a task throws because no descriptor is free. The caller that catches this gives up
  // the loop.
  const std::unique_ptr<Impl, void (*)(Impl*)> over(impl_.get(), [](Impl* impl) {
    impl->context.restart();
    impl->runner = std::thread::id();
  });
  impl_->context.run();
}

void Loop::stop() {
  impl_->context.stop();
}

}  // namespace holdfast::io
