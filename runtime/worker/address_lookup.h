// AddressLookup: finds the addresses of the other ranks, which this worker's agent leaves in a file
// (runtime/jobs/addresses_file.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "core/address_book.h"
#include "io/loop.h"

namespace holdfast::runtime {

// Call it in the loop's thread only. Once it is destroyed, the loop does not call it any more.
class AddressLookup {
 public:
  struct Handlers {
    std::function<bool()> is_awaited;
    // Gets each book that is found, also one that is not the awaited one.
    std::function<void(std::shared_ptr<const AddressBook>)> on_found;
    std::function<void()> on_overdue;
  };
  // Requires: `loop` outlives this.
  AddressLookup(io::Loop& loop, std::string directory, Handlers handlers)
      : loop_(loop), directory_(std::move(directory)), handlers_(std::move(handlers)) {}
  ~AddressLookup() { loop_.cancel(timer_); }
  AddressLookup(const AddressLookup&) = delete;
  AddressLookup& operator=(const AddressLookup&) = delete;

  // Looks at once, and then ever more rarely, until is_awaited() is false. Calls on_overdue() once,
  // after a second. If it looks already, it starts over.
  void begin();

 private:
  void look(Duration next, std::optional<Instant> overdue);

  io::Loop& loop_;
  const std::string directory_;
  const Handlers handlers_;
  io::Loop::TimerId timer_ = io::Loop::TimerId::kNone;
};

}  // namespace holdfast::runtime
