#include "sim/journal.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "wire/codec.h"

namespace holdfast::sim {

bool Journal::finished(Rank rank) const {
  const auto at = static_cast<std::size_t>(rank);
  return formation_ && at < formation_->roster.size() && formation_->roster[at].finished;
}

bool Journal::any_finished() const {
  return has_roster() && std::any_of(formation_->roster.begin(), formation_->roster.end(),
                                     [](const wire::Seat& seat) { return seat.finished; });
}

// Encodes and decodes a value, as the journal does when it writes and reads it.
template <class T>
void Journal::write_down(T& value, Result<T> (*decode)(std::string_view)) {
  auto read = decode(wire::encode(value));
  if (!read) return job_.checkers.violate(cat("P53: ", read.error().what));
  value = *std::move(read);
}

void Journal::begin(std::vector<wire::SnapshotName> snapshots) {
  formation_ = wire::Formation{.job = "job", .run_id = job_.run_id};
  formation_->snapshots = std::move(snapshots);
}

// What is on record of snapshots must only get better, unless one proves to be unreadable.
void Journal::check_snapshots(const wire::Formation& before) {
  if (disk_.readable(formation_->snapshots) < disk_.readable(before.snapshots)) {
    job_.checkers.violate("S9: the newest readable snapshot is not on record any more");
  }
  if (!formation_->loads || (before.loads && before.version == formation_->version)) return;
  has_load_ = !before.loads;  // Else what the ranks held was given up before.
  for (const auto& snapshot : formation_->snapshots) {
    if (snapshot.version > formation_->version) {
      job_.checkers.violate("S9: the job begins again with a snapshot that is not the newest one");
    }
  }
  job_.checkers.loads(formation_->version);
}

void Journal::make_durable(controller::Store& store) {
  if (store.formation) {
    auto roster = std::exchange(store.formation->roster, {});
    write_down(*store.formation, wire::decode_formation);
    for (auto& seat : roster) write_down(seat, wire::decode_seat);
    store.formation->roster = std::move(roster);
  }
  for (auto& [rank, seat] : store.seats) write_down(seat, wire::decode_seat);
  if (store.formation && !formation_) formation_.emplace();
  const auto before = formation_;
  if (formation_) controller::apply(store, *formation_);
  if (store.formation && job_.setup.snapshots) check_snapshots(*before);
  for (auto& pair : store.kept) values_[pair.key] = std::move(pair);
  for (const auto& last : store.writers) writers_[last.writer] = last;
  for (auto& [number, remark] : store.remarks) {
    write_down(remark, wire::decode_remark);
    if (number != remarks_.size() + 1) job_.checkers.violate("P53: a remark is not the next one");
    remarks_.push_back(std::move(remark));
  }
}

}  // namespace holdfast::sim
