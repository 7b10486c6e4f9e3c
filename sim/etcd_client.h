// EtcdClient: the requests of simulated schedulers to etcd. A request gets no answer while etcd is
// away or the scheduler's host is cut off. Others go wrong because a choice says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "sim/election_jobs.h"

namespace holdfast::sim {

inline constexpr Duration kAskLimit = std::chrono::seconds(1);  // How long an answer is awaited.

class EtcdClient {
 public:
  using Index = ElectionJobs::Index;

  explicit EtcdClient(ElectionJobs& jobs) : jobs_(jobs) {}

  // From now on `times` requests may go wrong. `rarity`: as in Choices::pick().
  void go_wrong(std::uint32_t times, std::uint32_t rarity) {
    odd_left_ = times;
    odd_rarity_ = rarity;
  }
  [[nodiscard]] bool reaches_etcd(Index p) const {
    return jobs_.now() >= jobs_.etcd.away_until() &&
           jobs_.now() >= jobs_.hosts[jobs_.schedulers[p].host].cut_until;
  }
  // Whether the scheduler still has its key in etcd; checks also that the key is its own. For
  // requests that change something only on this condition.
  [[nodiscard]] bool holds(Index p) {
    const bool holds = jobs_.etcd.has(jobs_.schedulers[p].lead->key.created);
    if (holds && jobs_.etcd.owner() != p) {
      jobs_.violate("E1: two schedulers change the journal with one key");
    }
    return holds;
  }
  // Makes etcd do `what`, and then calls `heard` with the answer, or with nothing if the answer is
  // lost. `changes`: `what` changes something.
  template <class Answer>
  void request(Index p, bool changes, std::function<Answer()> what,
               std::function<void(std::optional<Answer>)> heard);

 private:
  ElectionJobs& jobs_;
  std::uint32_t odd_left_ = 0;  // How many more requests may go wrong.
  std::uint32_t odd_rarity_ = 1;
};

template <class Answer>
void EtcdClient::request(Index p, bool changes, std::function<Answer()> what,
                         std::function<void(std::optional<Answer>)> heard) {
  using namespace std::chrono_literals;
  enum Fate : std::uint32_t { kQuick, kAnswerLost, kLate, kLost, kSlow };
  std::uint32_t fate = kQuick;
  const bool may_be_odd = odd_left_ > 0 && !jobs_.quiet && (changes || !jobs_.small);
  if (may_be_odd) fate = jobs_.choices.pick(jobs_.small ? 3 : 5, odd_rarity_);
  if (fate != kQuick) {
    --odd_left_;
    jobs_.schedulers[p].disturbed = jobs_.now();
    jobs_.tell(cat(jobs_.name(p), "'s request goes wrong: ", fate));
  }
  const bool reached = reaches_etcd(p);
  const bool answered = reached && (fate == kQuick || fate == kSlow);
  const Duration there = fate == kLate ? 1500ms : fate == kSlow ? 300ms : 1ms;
  const Duration back = !answered ? kAskLimit : fate == kSlow ? 600ms : 2ms;
  const auto answer = std::make_shared<std::optional<Answer>>();
  if (reached && fate != kLost) {
    jobs_.timeline.at(jobs_.now() + there, [this, p, what, answer] {
      jobs_.etcd.settle(jobs_.now());
      if (reaches_etcd(p)) *answer = what();
    });
  }
  jobs_.for_process(p, back, [this, p, back, answered, heard, answer] {
    if (answered && *answer) return heard(*answer);
    jobs_.for_process(p, kAskLimit - back, [heard] { heard(std::nullopt); });
  });
}

}  // namespace holdfast::sim
