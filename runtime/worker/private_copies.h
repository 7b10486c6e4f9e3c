// PrivateCopies: in one generation, passes this rank's private state to its holder, so that another
// host has it too, and takes that of its wards (core/planner/holders.h says who holds for whom).
// Each pair has a link of its own (docs/formats/peers.md has the bytes).
//
// All ranks call join() and exchange() alike. A call ends when this rank has sent its own private
// state and received those of all its wards; or with an error when a link ends, the token stops, or
// `must_stop` returns true.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "collective/flow.h"
#include "collective/links.h"
#include "runtime/worker/state_store.h"

namespace holdfast::runtime {

// One thread calls everything. Any thread may stop the token.
class PrivateCopies {
 public:
  struct Options {
    collective::Layout layout;  // The hosts of the group: several.
    Generation generation = 0;
    Rank rank = kNoRank;
    collective::Links::Deadline deadline;       // Until then the links must be made.
    std::stop_token stop;                       // Ends calls at once, as long as this lives.
    std::function<bool()> must_stop = nullptr;  // Asked several times a second while a call waits.
  };

  // Links this rank to its holder and its wards. Afterwards each holder has the version at which
  // its ward's store is now; what it had already is not sent again. Requires: `store` outlives
  // this. Errors: kUser: no room for what is held here; kPeer: a ward is at another version; else
  // kWorld.
  [[nodiscard]] static Result<std::unique_ptr<PrivateCopies>> join(const Options& options,
                                                                   StateStore& store);
  ~PrivateCopies();
  PrivateCopies(const PrivateCopies&) = delete;
  PrivateCopies& operator=(const PrivateCopies&) = delete;

  // Gives the private part of n and takes those of the wards. After an error nothing can be
  // exchanged any more.
  [[nodiscard]] Status exchange(Version n);

 private:
  struct Stream;
  struct Ward;
  PrivateCopies(Options options, StateStore& store);
  Status link(Rank holder, const std::vector<Rank>& wards);
  Status greet(Version version);
  Status answer(Version version, bool& holder_has_it);
  Status give_and_take(Version version, bool gives, bool takes_all);
  void give(Version version, arena::Parts& table);
  bool take_table(Ward& ward);
  Status drive();
  Error end(const char* why);
  void cut();

  Options options_;
  StateStore& store_;
  std::vector<std::unique_ptr<collective::Link>> links_;
  Rank holder_ = kNoRank;
  std::unique_ptr<Stream> to_holder_, from_holder_;  // Null: there is none.
  std::uint64_t seal_ = 0;                           // Of what is sent to the holder.
  std::vector<std::unique_ptr<Ward>> wards_;
  std::vector<Stream*> streams_;
  std::vector<collective::Flow*> flows_;  // The flows of streams_.
  Version version_ = 0;                   // The version that the wards send now.
  bool is_over_ = false;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

}  // namespace holdfast::runtime
