// A simulated etcd, as far as an election asks it: a job's key, leases that end late, and which
// run the journal is of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "core/election/machine.h"

namespace holdfast::sim {

inline constexpr Duration kTtl = std::chrono::seconds(2);  // Of a lease.

class Etcd {
 public:
  using Index = std::size_t;

  void be_away(Instant now, Duration time, bool extends);
  [[nodiscard]] Instant away_until() const { return away_until_; }
  void end_late(Duration time) { late_ = time; }

  // Leases that have ended by now are gone, with the key that they held.
  void settle(Instant now);
  std::int64_t grant(Instant now, Duration ttl = kTtl);
  bool keep_alive(std::int64_t lease, Instant now);
  void revoke(std::int64_t lease, Instant now);

  // Who has put it says that it is `owner`.
  bool put(const election::Leader& leader, std::int64_t lease, Index owner);
  bool remove(std::int64_t created);
  [[nodiscard]] bool has(std::int64_t created) const { return key_ && key_->created == created; }
  void say_where() { key_->leader.host = "there"; }
  [[nodiscard]] const std::optional<election::Key>& key() const { return key_; }
  [[nodiscard]] Index owner() const { return owner_; }
  [[nodiscard]] election::Looked look(Instant asked) const {
    return {.asked = asked, .key = key_, .has_journal = journal.has_value(), .run = journal};
  }

  std::optional<std::uint64_t> journal;  // Its run.

 private:
  Instant away_until_{};
  Duration late_{};  // So much later than they might, leases end.
  std::int64_t revision_ = 0;
  std::optional<election::Key> key_;
  Index owner_ = 0;
  std::map<std::int64_t, Instant> leases_;  // When they end.
};

}  // namespace holdfast::sim
