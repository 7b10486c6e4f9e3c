#include "apps/web/watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace holdfast::apps::web {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kPause = 1;
constexpr double kLongestPause = 30;
constexpr double kShare = 20;  // The scheduler's time, of which one part is for this.

Seconds wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Watch::Watch(std::function<Answer()> ask)
    : ask_(std::move(ask)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

std::string Watch::text(const std::string& key,
                        const std::function<std::string(const Record&, Seconds now)>& make) {
  const std::lock_guard lock(mutex_);
  const auto [made, is_new] = made_.try_emplace(key);
  if (is_new) made->second = make(record_, wall_clock());
  return made->second;
}

void Watch::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return has_asked_; });
}

void Watch::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const auto before = Clock::now();
    auto answer = ask_();
    const double took = std::chrono::duration<double>(Clock::now() - before).count();
    auto status = Json::parse(answer.status.value_or(""), nullptr, false);
    if (answer.status && !status.is_object()) answer.why_not = "the scheduler's answer is no JSON";
    std::unique_lock lock(mutex_);
    if (status.is_object()) record_.take(std::move(status), wall_clock(), took);
    const double pause = answer.why_not.empty() ? std::min(kShare * took, kLongestPause) : 0;
    if (!answer.why_not.empty()) record_.miss(std::move(answer.why_not));
    made_.clear();
    has_asked_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, stop, std::chrono::duration<double>(std::max(pause, kPause)),
                      [] { return false; });
  }
}

}  // namespace holdfast::apps::web
