// AddressLookup: a worker looks for what its agent leaves: where the other ranks are.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "core/address_book.h"
#include "io/loop.h"

namespace holdfast::runtime {

// All in the loop's thread. The loop calls it no more once it is gone.
class AddressLookup {
 public:
  struct Handlers {
    std::function<bool()> is_awaited;
    std::function<void(std::shared_ptr<const AddressBook>)> on_found;  // It may be another one.
    std::function<void()> on_overdue;
  };
  // `loop` outlives it.
  AddressLookup(io::Loop& loop, std::string directory, Handlers handlers)
      : loop_(loop), directory_(std::move(directory)), handlers_(std::move(handlers)) {}
  ~AddressLookup() { loop_.cancel(timer_); }
  AddressLookup(const AddressLookup&) = delete;
  AddressLookup& operator=(const AddressLookup&) = delete;

  // Looks until none is awaited, at once and then ever more rarely. Says once, after a second, that
  // it is overdue. When it looks already, it begins anew.
  void begin();

 private:
  void look(Duration next, std::optional<Instant> overdue);

  io::Loop& loop_;
  const std::string directory_;
  const Handlers handlers_;
  io::Loop::TimerId timer_ = io::Loop::TimerId::kNone;
};

}  // namespace holdfast::runtime
