// A simulated etcd with what an election needs: a job's key, leases that may end late, and the run
// to which the journal belongs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "core/election/machine.h"

namespace holdfast::sim {

inline constexpr Duration kTtl = std::chrono::seconds(2);  // The time to live of a lease.

class Etcd {
 public:
  using Index = std::size_t;

  void be_away(Instant now, Duration time, bool extends);
  [[nodiscard]] Instant away_until() const { return away_until_; }
  void end_late(Duration time) { late_ = time; }

  // Removes leases that have ended by now, and the key if it was bound to one.
  void settle(Instant now);
  std::int64_t grant(Instant now, Duration ttl = kTtl);
  bool keep_alive(std::int64_t lease, Instant now);
  void revoke(std::int64_t lease, Instant now);

  // `owner`: the scheduler that puts the key.
  bool put(const election::Leader& leader, std::int64_t lease, Index owner);
  bool remove(std::int64_t created);
  [[nodiscard]] bool has(std::int64_t created) const { return key_ && key_->created == created; }
  void say_where() { key_->leader.host = "there"; }
  [[nodiscard]] const std::optional<election::Key>& key() const { return key_; }
  [[nodiscard]] Index owner() const { return owner_; }
  [[nodiscard]] election::Looked look(Instant asked) const {
    return {.asked = asked, .key = key_, .has_journal = journal.has_value(), .run = journal};
  }

  std::optional<std::uint64_t> journal;  // The run to which the journal belongs; nullopt: none.

 private:
  Instant away_until_{};
  Duration late_{};  // How much later than they could leases end.
  std::int64_t revision_ = 0;
  std::optional<election::Key> key_;
  Index owner_ = 0;
  std::map<std::int64_t, Instant> leases_;  // When they end.
};

}  // namespace holdfast::sim
