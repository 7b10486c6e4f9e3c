#include "sim/memory.h"

#include <algorithm>

#include "base/text.h"

namespace holdfast::sim {

Memory::Memory(Job& job, const Journal& journal)
    : job_(job),
      journal_(journal),
      arenas_(static_cast<Index>(job.setup.ranks) *
              static_cast<Index>(job.setup.hosts ? job.setup.agents + 2 : 1)) {}

bool Memory::owner_lives(const Arena& arena, const Worker& opener) const {
  return std::any_of(job_.workers.begin(), job_.workers.end(), [&](const Worker& w) {
    return w.alive && w.process == arena.owner && w.process != opener.process;
  });
}

Index Memory::host_named(const std::string& name) const {
  for (Index i = 0; job_.setup.hosts && i < job_.agents.size(); ++i) {
    if (name == cat("host-", i)) return i;
  }
  return 0;
}

Rank Memory::holder_of(const Worker& worker, Rank rank) const {
  if (!job_.setup.hosts) {
    return job_.setup.serves(rank) ? kNoRank : (rank + 1) % job_.setup.workers();
  }
  return worker.holder_of.at(static_cast<std::size_t>(rank));
}

bool Memory::has_holder(Rank rank) const {
  if (!job_.setup.holders) return false;
  if (!job_.setup.hosts) return !job_.setup.serves(rank);
  return !last_holder_of_.empty() && last_holder_of_[static_cast<std::size_t>(rank)] != kNoRank;
}

std::vector<Rank> Memory::wards(const Worker& worker) const {
  std::vector<Rank> found;
  for (Rank rank = 0; job_.setup.holders && rank < job_.setup.ranks; ++rank) {
    if (holder_of(worker, rank) == worker.rank) found.push_back(rank);
  }
  return found;
}

Holding Memory::holding(const Worker& worker) const {
  const Arena& own = arena(worker);
  const bool serves = job_.setup.serves(worker.rank);
  Holding holding{own.version, own.staged, job_.setup.private_is_own || serves, {}};
  // All that a server has is private.
  (serves ? holding.has_lost_private : holding.has_lost_shared) =
      own.lost_state && own.version != kNoVersion;
  for (const auto& [key, part] : private_parts_) {
    if (!is_held_by(worker, key) || part.version == kNoVersion) continue;
    holding.held.push_back({std::get<2>(key), part.version, part.staged});
  }
  return holding;
}

void Memory::settle(const Worker& worker) {
  const Version v = arena(worker).version;
  for (auto& [key, part] : private_parts_) {
    if (!is_held_by(worker, key) || part.version == kNoVersion) continue;
    if (v == part.version) part.staged = v;
    if (v == part.staged) part.version = v;
  }
  if (job_.setup.serves(worker.rank)) drop_the_rest(worker);
}

void Memory::open_held(const Worker& worker) {
  const Version v = arena(worker).version;
  for (auto& [key, part] : private_parts_) {
    const bool follows = v != kNoVersion && v == part.staged;
    if (is_held_by(worker, key) && follows) part.version = v;
  }
  std::erase_if(private_parts_, [&](const auto& entry) {
    return is_held_by(worker, entry.first) && (v == kNoVersion || entry.second.version != v);
  });
}

void Memory::forget_held(const Worker& worker) {
  std::erase_if(private_parts_, [&](const auto& entry) { return is_held_by(worker, entry.first); });
}

void Memory::drop_the_rest(const Worker& worker) {
  std::erase_if(private_parts_, [&](const auto& entry) {
    return is_held_by(worker, entry.first) && entry.second.staged != arena(worker).version;
  });
}

bool Memory::seed(const Worker& worker) {
  if (!job_.setup.holders) return true;
  settle(worker);
  const Version v = arena(worker).version;
  for (const Rank ward : wards(worker)) {
    PrivatePart& part = held(host_of(worker), worker.rank, ward);
    if (part.has(v)) continue;
    part = {};
    if (arena(worker.host_of[static_cast<std::size_t>(ward)], ward).version != v) return false;
    part = {v, v};
  }
  return true;
}

std::vector<Arena> Memory::arenas_in_use() const {
  std::vector<Arena> found;
  for (Rank rank = 0; rank < job_.setup.ranks; ++rank) {
    const bool known = job_.setup.hosts && journal_.has_roster();
    const auto at = static_cast<std::size_t>(rank);
    Arena one = arena(known ? host_named(journal_.formation()->roster[at].host) : 0, rank);
    const bool lost = known || job_.had(Fault::kWipeAll);
    if (lost && journal_.finished(rank) && one.version == kNoVersion) {
      one.spent = true;  // The host was lost after the rank had ended its training.
    }
    found.push_back(one);
  }
  return found;
}

const PrivatePart* Memory::private_source(const Worker& worker, const trainer::Repair& work) {
  const auto& source = work.order.private_source;
  if (!job_.setup.holders || source.holder == kNoRank) return nullptr;
  return &held(host_named(source.host), source.holder, worker.rank);
}

std::optional<SnapshotPart> Memory::take_part(Index host, Rank rank, Version version) {
  const auto found = parts_.find({host, rank});
  if (found == parts_.end() || found->second.version != version) return std::nullopt;
  const SnapshotPart part = found->second;
  parts_.erase(found);
  return part;
}

void Memory::lose(const Worker& worker) {
  arena(worker) = Arena{.spent = journal_.finished(worker.rank)};
  parts_.erase({host_of(worker), worker.rank});
  forget_held(worker);
}

void Memory::lose_pages(const Worker& worker, bool of_state) {
  Arena& own = arena(worker);
  (of_state ? own.lost_state : own.lost_gradient) = true;
  own.is_noticed = false;
}

bool Memory::any_pages_lost() const {
  return std::any_of(arenas_.begin(), arenas_.end(), [](const Arena& a) { return a.has_lost(); });
}

void Memory::lose_host(Index host) {
  for (Rank rank = 0; rank < job_.setup.ranks; ++rank) {
    arena(host, rank) = Arena{.spent = journal_.finished(rank)};
    parts_.erase({host, rank});
  }
  std::erase_if(private_parts_,
                [&](const auto& entry) { return std::get<0>(entry.first) == host; });
}

void Memory::note_wipe() {
  ++wipes_;
  job_.checkers.wiped();
}

}  // namespace holdfast::sim
