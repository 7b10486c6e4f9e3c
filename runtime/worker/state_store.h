// StateStore: one rank's state in its versions, wherever its bytes lie.
//
// Session drives one and knows no more than this. The first is the arena (arena_store.h): memory of
// this host that outlives its process. A store on another host or in a device's memory is one more
// class of this interface.
//
// Threads: the training thread calls everything.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "arena/arena.h"
#include "base/ids.h"
#include "base/result.h"
#include "collective/group.h"
#include "core/holding.h"
#include "runtime/worker/worker.h"
#include "wire/formation.h"

namespace holdfast::runtime {

class StateStore {
 public:
  virtual ~StateStore() = default;

  [[nodiscard]] virtual Holding holding() const = 0;

  // Commits version 0 as the program has initialised it. Without effect if a version is held.
  virtual void begin(const arena::Position& position) = 0;
  // Makes this state a copy of the one at `order.source`, which stands still at `version`. The
  // private part comes along, unless Holding::private_is_own; then it comes from
  // `order.private_source`. After an error nothing is held.
  [[nodiscard]] virtual Status receive(const wire::Order& order, Version version) = 0;
  // Whether a receive() that failed has left something where version 0 would be filled. clear()
  // takes it away: all is zero, as in a new store.
  [[nodiscard]] virtual bool has_remains() const = 0;
  virtual void clear() = 0;

  // As in arena/arena.h. What is held for others follows: unstage() and finish() settle it;
  // update() settles what has the step staged, and drops the rest.
  virtual void stage(Version n, const arena::StagedStep& step) = 0;
  virtual void unstage() = 0;
  virtual void update(std::size_t threads) = 0;
  virtual void finish() = 0;

  // What only this rank has of a version that is committed or staged here: what lies where of
  // own_bytes(). What lies in no part is never read.
  struct OwnPart {
    std::uint64_t offset = 0;
    std::span<std::byte> bytes;
  };
  [[nodiscard]] virtual std::uint64_t own_bytes() const = 0;
  [[nodiscard]] virtual std::vector<OwnPart> own_parts(Version version) = 0;
  // What is held for that rank, which has so many own bytes: Layout::held_for() them, fresh at
  // first. Valid until update(). Errors: there is no room for it.
  [[nodiscard]] virtual Result<arena::Arena*> hold_for(Rank ward, std::uint64_t bytes) = 0;
  // Writes what is held of version(), without gradients, into a new file from which receive() can
  // take it. Requires: no step is staged.
  [[nodiscard]] virtual Status show(const std::string& path) = 0;

  // Holds nothing any more: this rank was elsewhere meanwhile.
  virtual void forget_held() = 0;

  // The memory in which the gradients are summed in place.
  [[nodiscard]] virtual collective::Registered gradients() = 0;
};

// Opens this rank's store as its predecessor left it. The worker has its identity.
using OpenStore = std::function<Result<std::unique_ptr<StateStore>>(Worker&, const Identity&)>;

}  // namespace holdfast::runtime
