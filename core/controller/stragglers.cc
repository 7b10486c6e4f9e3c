#include "core/controller/stragglers.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace holdfast::controller {

using wire::Reason;

namespace {

// Less than that is noise.
constexpr std::uint32_t kLeastUs = 2000;

bool is_slow(std::uint32_t own, std::uint32_t usual) {
  return own > usual && own - usual >= kLeastUs && own - usual > usual / 2;
}

std::uint32_t median(std::vector<std::uint32_t> all) {
  // The lower one of two: a single slow rank of two is not its own measure.
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() - 1) / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

}  // namespace

void Stragglers::hear(Rank rank, const wire::Progress& m) {
  if (m.own_us == 0 || rank >= job_.workers()) return;
  if (std::exchange(generation_, job_.formation.generation) != job_.formation.generation) {
    heard_.clear();
    for (auto& [each, standing] : standings_) standing = {.is_named = standing.is_named};
    began_ = job_.now;
  }
  Roster& roster = job_.roster;
  roster.set_times(roster.at(rank), m.own_us, m.between_us);
  heard_.insert(rank);
  const std::size_t ended =
      roster.in_state(SeatState::kFinished) + roster.in_state(SeatState::kLeft);
  const auto workers = static_cast<std::size_t>(job_.workers());
  if (heard_.size() + ended < workers || job_.now - began_ < kRound) return;
  judge();
  heard_.clear();
  began_ = job_.now;
}

void Stragglers::judge() {
  std::vector<std::uint32_t> own;
  std::vector<std::uint32_t> between;
  for (const Rank rank : heard_) {
    own.push_back(job_.roster.at(rank).own_us);
    between.push_back(job_.roster.at(rank).between_us);
  }
  if (own.size() < 2) return;
  const std::uint32_t usual = median(own);
  const std::uint32_t usual_between = median(between);
  for (const Rank rank : heard_) {
    const Member& member = job_.roster.at(rank);
    Standing& standing = standings_[rank];
    if (!is_slow(member.own_us, usual)) {
      const int rounds = std::min(standing.rounds, 0) - 1;
      standing = {.rounds = rounds, .is_named = standing.is_named && rounds > -kRounds};
      continue;
    }
    if (standing.rounds < 0) standing = {.is_named = standing.is_named};
    ++standing.rounds;
    standing.own_us += member.own_us;
    standing.between_us += member.between_us;
    standing.usual_us += usual;
    standing.usual_between_us += usual_between;
  }
  name_slow();
}

// If several ranks of a host are heard, and all of them are slow, it is the host that is named.
void Stragglers::name_slow() {
  for (auto& [rank, standing] : standings_) {
    if (standing.rounds < kRounds || standing.is_named) continue;
    Reason told = reason(rank, standing);
    if (is_slow_host(told.host)) {
      for (auto& [other, its] : standings_) {
        its.is_named = its.is_named || job_.roster.at(other).seat.host == told.host;
      }
      told.rank = kNoRank;
    }
    standing.is_named = true;
    remarks_.tell(told.rank, told);
  }
}

bool Stragglers::is_slow_host(const std::string& host) const {
  std::size_t ranks = 0;
  bool is_only_one = true;
  for (const Rank rank : heard_) {
    const bool is_there = job_.roster.at(rank).seat.host == host;
    is_only_one = is_only_one && is_there;
    if (is_there && standings_.at(rank).rounds < kRounds / 2) return false;
    ranks += is_there ? 1 : 0;
  }
  return ranks > 1 && !is_only_one;
}

Reason Stragglers::reason(Rank rank, const Standing& standing) const {
  const wire::Seat& seat = job_.roster.at(rank).seat;
  const bool is_between =
      2 * (standing.between_us - standing.usual_between_us) > standing.own_us - standing.usual_us;
  return {.kind = Reason::Kind::kSlow,
          .rank = rank,
          .pid = seat.pid,
          .count = standing.own_us / standing.rounds,
          .total = standing.usual_us / standing.rounds,
          .host = seat.host,
          .doing = is_between ? Doing::kBetween : Doing::kComputing};
}

}  // namespace holdfast::controller
