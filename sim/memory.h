// Memory: the memory of the simulated hosts: the ranks' arenas, and the private parts that ranks
// hold for others (their wards).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/checkers.h"
#include "sim/disk.h"
#include "sim/job.h"
#include "sim/journal.h"

namespace holdfast::sim {

struct PrivatePart {  // The private part of one rank, as its holder has it.
  Version version = kNoVersion;
  Version staged = kNoVersion;
  [[nodiscard]] bool has(Version v) const {
    return version != kNoVersion && (v == version || v == staged);
  }
};

class Memory {
 public:
  Memory(Job& job, const Journal& journal);

  // The host of a worker's memory; 0 if all ranks share one host.
  [[nodiscard]] Index host_of(const Worker& worker) const {
    return job_.setup.hosts ? worker.agent : 0;
  }
  [[nodiscard]] Index host_named(const std::string& name) const;

  [[nodiscard]] Arena& arena(Index host, Rank rank) { return arenas_[at(host, rank)]; }
  [[nodiscard]] const Arena& arena(Index host, Rank rank) const { return arenas_[at(host, rank)]; }
  [[nodiscard]] Arena& arena(const Worker& worker) { return arena(host_of(worker), worker.rank); }
  [[nodiscard]] const Arena& arena(const Worker& worker) const {
    return arena(host_of(worker), worker.rank);
  }
  // The arenas on the hosts where the ranks' seats are.
  [[nodiscard]] std::vector<Arena> arenas_in_use() const;
  // Whether the process that opened the arena last lives, and is another one than `opener`.
  [[nodiscard]] bool owner_lives(const Arena& arena, const Worker& opener) const;

  // wards(): the ranks whose private parts this worker holds. holder_of(): who holds that of
  // `rank`; kNoRank: nobody. What a server has is held by a server of another host.
  [[nodiscard]] std::vector<Rank> wards(const Worker& worker) const;
  [[nodiscard]] Rank holder_of(const Worker& worker, Rank rank) const;
  // Whether somebody held what `rank` had, in the generation that has gone on last.
  [[nodiscard]] bool has_holder(Rank rank) const;
  void go_on_with(const std::vector<Rank>& holder_of) { last_holder_of_ = holder_of; }
  [[nodiscard]] PrivatePart& held(Index host, Rank holder, Rank ward) {
    return private_parts_[{host, holder, ward}];
  }
  // The held part from which the worker receives its private part; null: it receives none.
  [[nodiscard]] const PrivatePart* private_source(const Worker& worker,
                                                  const trainer::Repair& work);
  [[nodiscard]] Holding holding(const Worker& worker) const;
  // Brings the private parts that the worker holds to the version of its own arena.
  void settle(const Worker& worker);
  // The same when a server's process opens what its predecessor held. A step that is staged here
  // and there stays so.
  void open_held(const Worker& worker);
  void forget_held(const Worker& worker);
  // The worker has made a step: it drops held parts for which that step has not come.
  void drop_the_rest(const Worker& worker);
  // Once the group has formed, the holder gets parts that it lacks. False: a ward has lost its own.
  bool seed(const Worker& worker);

  // The worker copies what it has to give for a snapshot.
  void keep_part(const Worker& worker) {
    const Arena& own = arena(worker);
    parts_[{host_of(worker), worker.rank}] = {own.version, own.content, worker.joined};
  }
  // Removes that copy from the host's memory, and returns it; nullopt: it is not there.
  [[nodiscard]] std::optional<SnapshotPart> take_part(Index host, Rank rank, Version version);

  void lose(const Worker& worker);  // The memory of one worker.
  // Pages of a worker's state, or of its gradient.
  void lose_pages(const Worker& worker, bool of_state);
  [[nodiscard]] bool any_pages_lost() const;
  void lose_host(Index host);
  // An arena is lost, or may be taken for lost.
  void note_wipe();
  [[nodiscard]] std::uint32_t wipes() const { return wipes_; }

 private:
  using Key = std::tuple<Index, Rank, Rank>;  // Host, holder, ward.

  [[nodiscard]] Index at(Index host, Rank rank) const {
    return host * static_cast<Index>(job_.setup.ranks) + static_cast<Index>(rank);
  }
  [[nodiscard]] bool is_held_by(const Worker& worker, const Key& key) const {
    return std::get<0>(key) == host_of(worker) && std::get<1>(key) == worker.rank;
  }

  Job& job_;
  const Journal& journal_;
  std::vector<Arena> arenas_;  // By host, then rank.
  std::map<Key, PrivatePart> private_parts_;
  std::map<std::pair<Index, Rank>, SnapshotPart> parts_;  // For snapshots, by host and rank.
  std::vector<Rank> last_holder_of_;                      // By rank; only with several hosts.
  std::uint32_t wipes_ = 0;
};

}  // namespace holdfast::sim
