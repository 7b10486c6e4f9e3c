// StateStore: one rank's state in its versions, wherever its bytes lie.
//
// Session uses a store only through this interface. The first kind of store is the arena
// (arena_store.h): memory of this host that outlives its process. A store on another host or in a
// device's memory is one more class of this interface.
//
// Threads: the training thread calls everything.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
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
  // Error: what it is to begin with can not be had (a server's saved tables).
  [[nodiscard]] virtual Status begin(const arena::Position& position) = 0;
  // Looks for memory errors. holding() says what of the state is lost. (Gradients, a step that is
  // being staged, and memory of the program are none of it.) If the step has to be given up, a
  // staged one is, and copies that are held are dropped if they have lost pages. `was_used`: since
  // the last call, something was made of the committed private bytes. Requires: this rank has not
  // arrived at the commit barrier of a staged step.
  struct Losses {
    std::uint64_t pages = 0;  // Lost since the last call.
    // Only committed private bytes are lost, and nothing was made of them: the next version takes
    // their place. Until then they must not be used.
    bool can_wait = false;
  };
  [[nodiscard]] virtual Losses look_for_losses(bool was_used) = 0;
  // Makes this state a copy of the one at `order.source`, which stands still at `version`. The
  // private part comes along, unless Holding::private_is_own; then it comes from
  // `order.private_source`. If only pages of `version` were lost here, and the source
  // is on this host, they alone are copied. After an error nothing is held.
  struct Received {
    std::uint64_t bytes = 0;   // That were copied.
    bool is_of_pages = false;  // Only those of lost pages.
  };
  [[nodiscard]] virtual Result<Received> receive(const wire::Order& order, Version version) = 0;
  // Whether a receive() that failed has left something where version 0 would be filled. clear()
  // takes it away: all is zero, as in a new store.
  [[nodiscard]] virtual bool has_remains() const = 0;
  virtual void clear() = 0;

  // Whether what all ranks hold alike has come from another rank, and no update was made since.
  [[nodiscard]] virtual bool is_copy() const { return false; }

  // As in arena/arena.h. The copies that are held for other ranks follow: unstage() and finish()
  // settle them; update() settles those that have the step staged, and drops the others.
  virtual void stage(Version n, const arena::StagedStep& step) = 0;
  virtual void unstage() = 0;
  virtual void update(std::size_t threads) = 0;
  virtual void finish() = 0;

  // The private bytes that only this rank has: own_bytes() in all. own_parts() are the ranges of
  // them that are in use in a version, which is committed or staged here; other bytes are never
  // read. `offset`: within own_bytes().
  struct OwnPart {
    std::uint64_t offset = 0;
    std::span<std::byte> bytes;
  };
  [[nodiscard]] virtual std::uint64_t own_bytes() const = 0;
  [[nodiscard]] virtual std::vector<OwnPart> own_parts(Version version) = 0;
  // The arena for what is held for `ward`, which has `bytes` own bytes (Layout::held_for()). A new
  // one is fresh. Valid until update(). Errors: there is no room for it.
  [[nodiscard]] virtual Result<arena::Arena*> hold_for(Rank ward, std::uint64_t bytes) = 0;
  // Writes what is held of version(), without gradients, into a new file from which receive() can
  // take it. Requires: no step is staged.
  [[nodiscard]] virtual Status show(const std::string& path) = 0;

  // What writes this rank's part of a snapshot of version() to a new file. It may run in another
  // thread, and has to end before the next update() or finish(), and before what brings other
  // state. Requires: no step is staged.
  using Keeping = std::function<Status()>;
  [[nodiscard]] virtual Keeping keep(const std::string& /*path*/) {
    return [] { return not_in_snapshots(); };
  }
  // Whether others can find what is held. If not, no rank can exchange anything with this one any
  // more: its host's shared memory was cleared.
  [[nodiscard]] virtual bool is_in_place() const { return true; }
  // Gives up all that is held, and takes `version` from the snapshot `name` in the folder `dir`.
  // After an error nothing is held: kUser: the snapshot is of another program; kWorld: it can not
  // be read.
  [[nodiscard]] virtual Result<Received> load(const std::string& /*dir*/,
                                              const std::string& /*name*/, Version /*version*/) {
    return not_in_snapshots();
  }

  // Drops all that is held for other ranks, because this rank has been on another host since.
  virtual void forget_held() = 0;

  // Whether this rank takes what its wards stage from the same operations as they do, so that
  // nothing has to be exchanged for it (parameter servers).
  [[nodiscard]] virtual bool holds_by_itself() const { return false; }
  // For such a store, when a generation is formed: fetches what `wards` have at version() and this
  // rank lacks, and drops all else that is held. Ends with an error soon after `stop`.
  [[nodiscard]] virtual Status hold(const std::vector<Rank>& /*wards*/,
                                    const std::stop_token& /*stop*/) {
    return {};
  }

  // Memory whose pages look_for_losses() has replaced if they are lost, and which another rank can
  // give back: the gradients, and what all ranks hold alike of the committed version.
  [[nodiscard]] virtual std::vector<std::span<std::byte>> replaceable() { return {}; }

  // The memory in which the gradients are summed in place.
  [[nodiscard]] virtual collective::Registered gradients() = 0;

 private:
  static Error not_in_snapshots() { return {Blame::kUser, "this kind of state is in no snapshot"}; }
};

// Opens this rank's store as its predecessor left it. The worker has its identity.
using OpenStore = std::function<Result<std::unique_ptr<StateStore>>(Worker&, const Identity&)>;

}  // namespace holdfast::runtime
