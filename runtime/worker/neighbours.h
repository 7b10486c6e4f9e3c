// Neighbours: the workers of other hosts, as this one knows them: where they are, the links to
// them, and the states that are fetched from them or given to them.
//
// If the scheduler is at a loopback address, the whole job is on this host. Then nothing listens,
// and there are no neighbours.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "collective/links.h"
#include "config/settings.h"
#include "core/address_book.h"
#include "runtime/worker/data_links.h"
#include "wire/messages.h"

namespace holdfast::runtime {

// Any thread.
class Neighbours {
 public:
  // Requires: `settings` outlive this.
  // `damaged`: see DataLinks::Options. Not called any more once this is gone, though links live on.
  explicit Neighbours(const config::Settings& settings,
                      std::function<void(Rank, const std::string&)> damaged = nullptr)
      : settings_(settings), damaged_(std::make_shared<Told>()) {
    damaged_->call = std::move(damaged);
  }
  ~Neighbours() {
    const std::lock_guard lock(damaged_->mutex);
    damaged_->call = nullptr;
  }
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  // Listens at the address from which this process reaches its scheduler, because other hosts reach
  // this one there, too. Returns the endpoint; "": nobody can reach this process. Later calls
  // return the same.
  std::string listen(const std::string& address);
  void placed(std::uint64_t run_id, Rank rank);  // Sets this process's rank.
  // Sets the places of all ranks, by rank, in the generation that is to be formed. Empty: all share
  // this host's memory.
  void meet(const std::vector<PeerPlace>& peers);
  [[nodiscard]] collective::Layout layout() const;
  std::size_t cut_links();  // See DataLinks. 0: nothing listens.

  // A repair begins. Its fetch_state() ends when stop_repair() is called.
  void begin_repair();
  void stop_repair();
  [[nodiscard]] bool is_repair_stopped() const { return repair().stop_requested(); }
  [[nodiscard]] std::stop_token repair() const;  // Is stopped with it.
  // Where another rank is, in the generation that is to be formed. Requires: there are neighbours.
  [[nodiscard]] wire::Location location_of(Rank rank) const;
  // Fetches the state of `rank` at `version` from `source`, on another host, into `sink`. One try;
  // blocks. Ends with an error soon after `stop`.
  [[nodiscard]] Status fetch_state(const wire::Location& source, Rank rank, Version version,
                                   StateSink& sink, const std::stop_token& stop);
  // From here on other workers get the states that `state_of` returns. Null: none.
  void serve_state(StateServer::StateOf state_of);

 private:
  const config::Settings& settings_;
  struct Told {
    std::mutex mutex;
    std::function<void(Rank, const std::string&)> call;
  };
  const std::shared_ptr<Told> damaged_;
  mutable std::mutex mutex_;          // Guards what follows.
  std::shared_ptr<DataLinks> links_;  // Null: nothing listens.
  StateServer::StateOf state_of_;
  std::uint64_t run_id_ = 0;
  Rank rank_ = kNoRank;
  collective::Layout layout_;
  std::vector<std::string> endpoints_;  // By rank.
  std::stop_source repair_;
};

}  // namespace holdfast::runtime
