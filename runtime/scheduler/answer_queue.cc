#include "runtime/scheduler/answer_queue.h"

#include <algorithm>
#include <utility>

namespace holdfast::runtime {
namespace {

using controller::Link;

constexpr std::size_t kAnswersAtOnce = 4;  // Large answers that are on their way.
constexpr std::size_t kSmallAnswer = 65536;
constexpr Duration kAnswerPatience = std::chrono::seconds(1);

}  // namespace

void AnswerQueue::add(const controller::Answer& answer) {
  answers_.push_back(answer);
  // An answer keeps its value in memory even after the key has a newer value, so all that wait are
  // counted.
  std::size_t& waiting = waiting_[answer.found.get()];
  if (++waiting == 1) waiting_bytes_ += answer.found->value.size();
  if (waiting_bytes_ > 2 * controller::kMaxStoredBytes) {
    if (const auto found = connections_.find(answer.link); found != connections_.end()) {
      found->second->close();
    }
  }
  send();
}

void AnswerQueue::withdraw(Link link, std::uint64_t id) {
  const auto of = std::find_if(answers_.begin(), answers_.end(), [&](const auto& answer) {
    return answer.link == link && answer.id == id;
  });
  if (of != answers_.end()) (void)take(of);
}

void AnswerQueue::drained(Link link) {
  if (answering_.erase(link) != 0) send();
}

controller::Answer AnswerQueue::take(std::deque<controller::Answer>::iterator from) {
  controller::Answer answer = std::move(*from);
  answers_.erase(from);
  const auto waiting = waiting_.find(answer.found.get());
  if (--waiting->second == 0) {
    waiting_bytes_ -= answer.found->value.size();
    waiting_.erase(waiting);
  }
  return answer;
}

void AnswerQueue::send() {
  const auto may_go = [this](const controller::Answer& answer) {
    const auto found = connections_.find(answer.link);
    return found == connections_.end() || found->second->queued_bytes() <= kSmallAnswer;
  };
  while (answering_.size() < kAnswersAtOnce) {
    const auto next = std::find_if(answers_.begin(), answers_.end(), may_go);
    if (next == answers_.end()) break;
    const controller::Answer answer = take(next);
    const auto found = connections_.find(answer.link);
    if (found == connections_.end()) continue;
    const wire::KeyValue& value = *answer.found;
    found->second->send(wire::Got{answer.id, true, value.key, value.value, value.version});
    if (found->second->queued_bytes() > kSmallAnswer) answering_.insert(answer.link);
  }
  if (answers_.empty() || has_timer_) return;
  has_timer_ = true;
  loop_.after(kAnswerPatience, [this] {
    has_timer_ = false;
    answering_.clear();
    send();
  });
}

}  // namespace holdfast::runtime
