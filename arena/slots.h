// SlotLocks: the locks of the threads that work on an update, in shared memory. Only for the files
// of this folder and of table.
#pragma once

#include <pthread.h>

#include <cstddef>

#include "base/ids.h"
#include "os/robust_mutex.h"

namespace holdfast::arena {

// Locks the first `count` slots of an update, for as long as it lives. A slot has a robust mutex
// `alive`, which is held by the thread that works on it.
template <class Slot>
class SlotLocks {
 public:
  SlotLocks(Slot* slots, std::size_t count) : slots_(slots) {
    while (held_ < count) {
      last_ = os::lock_robust(slots_[held_].alive, kPatience);
      if (!all()) return;
      ++held_;
    }
  }
  ~SlotLocks() {
    while (held_ > 0) os::unlock_robust(slots_[--held_].alive);
  }
  SlotLocks(const SlotLocks&) = delete;
  SlotLocks& operator=(const SlotLocks&) = delete;
  [[nodiscard]] bool all() const {
    return last_ == os::Locked::kFree || last_ == os::Locked::kOrphaned;
  }
  [[nodiscard]] os::Locked last() const { return last_; }

 private:
  static constexpr Duration kPatience = std::chrono::seconds(5);

  Slot* slots_;
  std::size_t held_ = 0;
  os::Locked last_ = os::Locked::kFree;
};

}  // namespace holdfast::arena
