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
  // Makes this state a copy of the one at `source`, which stands still at `version`. The private
  // part comes along, unless Holding::private_is_own. After an error nothing is held.
  [[nodiscard]] virtual Status receive(const wire::Location& source, Version version) = 0;

  // As in arena/arena.h.
  virtual void stage(Version n, const arena::StagedStep& step) = 0;
  virtual void unstage() = 0;
  virtual void update(std::size_t threads) = 0;
  virtual void finish() = 0;

  // The memory in which the gradients are summed in place.
  [[nodiscard]] virtual collective::Registered gradients() = 0;
};

// Opens this rank's store as its predecessor left it. The worker has its identity.
using OpenStore = std::function<Result<std::unique_ptr<StateStore>>(Worker&, const Identity&)>;

}  // namespace holdfast::runtime
