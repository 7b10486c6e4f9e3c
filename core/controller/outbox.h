// Outbox: actions wait here until the record behind them is durable.
//
// Pure. Every action after a Store is held back until that Store is answered, except answers about
// values that are durable already. Stores themselves never wait: several may be unanswered, and are
// made durable in order.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/controller/events.h"

namespace holdfast::controller {

class Outbox {
 public:
  void add(Action action);
  void add_at_once(Action action) { actions_.push_back(std::move(action)); }
  void stored();  // The oldest unanswered Store is durable.
  [[nodiscard]] Actions take() { return std::exchange(actions_, {}); }

  // Whether one of these keys has a value that is not durable yet.
  [[nodiscard]] bool is_unstored(const std::vector<std::string>& keys) const;
  // Size of all values that are not durable yet.
  [[nodiscard]] std::size_t unstored_bytes() const { return unstored_bytes_; }
  // How many answers for this connection are held back.
  [[nodiscard]] std::size_t held_answers(Link link) const;
  void closed(Link link) { held_answers_.erase(link); }

 private:
  [[nodiscard]] static Link asker_of(const Action& action);

  struct Unstored {
    std::vector<std::string> keys;  // The keys that the Store gives values to,
    std::size_t bytes = 0;          // and the size of these values.
    Actions held;                   // All actions after it, up to the next Store.
  };
  std::deque<Unstored> unstored_;  // Stores that are not answered, the oldest first.
  std::size_t unstored_bytes_ = 0;
  std::map<std::string, std::size_t> unstored_keys_;  // By key: how many of these Stores it is in.
  std::map<Link, std::size_t> held_answers_;
  Actions actions_;
};

}  // namespace holdfast::controller
