// A journal whose transactions last until a test lets them end.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "io/journal.h"

namespace holdfast::io {

class HeldJournal : public Journal {
 public:
  // What the test and the journal have in common; it may outlive both.
  struct Hand {
    void until_held() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return under_way; });
    }
    void let_go() {
      const std::lock_guard lock(mutex);
      holds = false;
      changed.notify_all();
    }

    std::mutex mutex;
    std::condition_variable changed;
    bool holds = true;
    bool under_way = false;
    std::vector<wire::Changes> stored;  // One for each transaction so far.
    Status result;                      // Of the transactions to come.
    bool one_by_one = false;            // takes_at_once() is false.
    bool in_memory = false;
  };

  HeldJournal(std::shared_ptr<Hand> hand, std::unique_ptr<Journal> behind = nullptr)
      : hand_(std::move(hand)), behind_(std::move(behind)) {}

  Result<wire::Memory> load() override { return wire::Memory{}; }
  Status store(const wire::Changes& changes) override {
    std::unique_lock lock(hand_->mutex);
    hand_->under_way = true;
    hand_->changed.notify_all();
    hand_->changed.wait(lock, [this] { return !hand_->holds; });
    hand_->under_way = false;
    hand_->stored.push_back(changes);
    return behind_ ? behind_->store(changes) : hand_->result;
  }
  [[nodiscard]] bool is_in_memory() const override { return hand_->in_memory; }
  [[nodiscard]] bool takes_at_once(const wire::Changes& first,
                                   const wire::Changes& later) const override {
    return behind_ ? behind_->takes_at_once(first, later) : !hand_->one_by_one;
  }
  Status begin(const wire::Formation& formation) override {
    return store({.formation = formation});
  }
  Status remove() override { return {}; }
  [[nodiscard]] std::string name() const override { return "a journal of a test"; }

 private:
  const std::shared_ptr<Hand> hand_;
  const std::unique_ptr<Journal> behind_;
};

}  // namespace holdfast::io
