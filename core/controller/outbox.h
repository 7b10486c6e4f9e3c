// Outbox: what is said and done waits until the record behind it is durable.
//
// Pure. Every action after a Store is held back until that Store is answered, but for what is told
// of values that are durable already. Stores wait for nothing: several may be unanswered, and are
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
  [[nodiscard]] std::size_t unstored_bytes() const { return unstored_bytes_; }  // Of all values.
  // Answers for this connection that are held back.
  [[nodiscard]] std::size_t held_answers(Link link) const;
  void closed(Link link) { held_answers_.erase(link); }

 private:
  [[nodiscard]] static Link asker_of(const Action& action);

  struct Unstored {
    std::vector<std::string> keys;  // Which it gives values,
    std::size_t bytes = 0;          // of so many bytes.
    Actions held;                   // All after it, up to the next one.
  };
  std::deque<Unstored> unstored_;  // Stores that are not answered, the oldest first.
  std::size_t unstored_bytes_ = 0;
  std::map<std::string, std::size_t> unstored_keys_;  // How many of these stores each is in.
  std::map<Link, std::size_t> held_answers_;
  Actions actions_;
};

}  // namespace holdfast::controller
