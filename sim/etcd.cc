#include "sim/etcd.h"

#include <algorithm>

namespace holdfast::sim {

// `extends`: when etcd is back, its new leader gives all leases their full time anew.
void Etcd::be_away(Instant now, Duration time, bool extends) {
  away_until_ = std::max(away_until_, now + time);
  if (!extends) return;
  for (auto& [lease, ends] : leases_) ends = std::max(ends, away_until_ + kTtl + late_);
}

void Etcd::settle(Instant now) {
  if (now < away_until_) return;
  std::erase_if(leases_, [&](const auto& lease) { return lease.second <= now; });
  if (key_ && !leases_.contains(key_->lease)) key_.reset();
}

std::int64_t Etcd::grant(Instant now, Duration ttl) {
  leases_[++revision_] = now + ttl + late_;
  return revision_;
}

bool Etcd::keep_alive(std::int64_t lease, Instant now) {
  settle(now);
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return false;
  found->second = now + kTtl + late_;
  return true;
}

void Etcd::revoke(std::int64_t lease, Instant now) {
  leases_.erase(lease);
  settle(now);
}

bool Etcd::put(const election::Leader& leader, std::int64_t lease, Index owner) {
  if (key_ || !leases_.contains(lease)) return false;
  key_ = {leader, ++revision_, lease};
  owner_ = owner;
  return true;
}

bool Etcd::remove(std::int64_t created) {
  if (!has(created)) return false;
  key_.reset();
  return true;
}

}  // namespace holdfast::sim
