// Drills: what people want to happen to this process, to try their job (docs/drills.md). Each comes
// in the training thread, when that begins with the phase that was asked for.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/whereabouts.h"
#include "runtime/worker/state_store.h"
#include "wire/messages.h"

namespace holdfast::runtime {

class Drills {
 public:
  // `cut_links` ends this process's links to other hosts and returns how many there were.
  explicit Drills(std::function<std::size_t()> cut_links = nullptr)
      : cut_links_(std::move(cut_links)) {}

  // Any thread. What comes while too many wait (16) is dropped.
  void order(const wire::Drill& drill);

  // ---- The training thread ----------------------------------------------------------------------

  // Cheap, for a process that nobody drills.
  void begin(Doing phase, StateStore& store) {
    if (waiting_.load(std::memory_order_relaxed) > 0) come(phase, store);
  }
  // Flips a bit of a byte in the memory that the program trains on. False: it could not.
  using Flip = std::function<bool(std::size_t which, std::uint64_t byte, unsigned bit)>;
  // What kFlip may flip: the names and bytes of what this rank holds alike with the others. `flip`:
  // how, if the program trains on other memory than these bytes.
  void may_flip(std::vector<std::string> names,
                std::function<std::span<std::byte>(std::size_t)> bytes_of, Flip flip = {});

 private:
  void come(Doing phase, StateStore& store);
  void flip(std::uint64_t seed, Version version) const;
  void cut() const;

  const std::function<std::size_t()> cut_links_;
  std::mutex mutex_;
  std::vector<wire::Drill> drills_;
  std::atomic<std::size_t> waiting_ = 0;
  Version slowed_ = kNoVersion;  // The newest step that a kSlow made longer.
  std::vector<std::string> names_;
  std::function<std::span<std::byte>(std::size_t)> bytes_of_;
  Flip flip_;
};

}  // namespace holdfast::runtime
