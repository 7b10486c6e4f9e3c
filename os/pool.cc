#include "os/pool.h"

#include <signal.h>

#include <system_error>

#include "base/assert.h"

namespace holdfast::os {

Pool::Pool(std::size_t threads) {
  // The trainer's signals are for the trainer's threads. A memory error is for the thread that
  // meets it.
  sigset_t asynchronous;
  sigset_t before;
  sigfillset(&asynchronous);
  for (const int signal : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&asynchronous, signal);
  pthread_sigmask(SIG_SETMASK, &asynchronous, &before);
  try {
    for (std::size_t i = 1; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    end();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Pool::~Pool() {
  end();
}

void Pool::end() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(std::size_t count, const std::function<void(std::size_t)>& work) {
  HF_ASSERT(count >= 1 && count <= size());
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    count_ = count;
    running_ = count - 1;
    ++round_;
  }
  begin_.notify_all();
  work(0);
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return running_ == 0; });
}

void Pool::serve(std::size_t index) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    if (index >= count_) continue;
    const auto* work = work_;
    lock.unlock();
    (*work)(index);
    lock.lock();
    if (--running_ == 0) end_.notify_one();
  }
}

}  // namespace holdfast::os
