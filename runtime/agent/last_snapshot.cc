#include "runtime/agent/last_snapshot.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>
#include <vector>

#include "arena/arena.h"
#include "base/number.h"
#include "base/text.h"
#include "core/planner/planner.h"
#include "os/files.h"
#include "runtime/agent/host_notes.h"
#include "runtime/jobs/arena_parts.h"
#include "runtime/jobs/snapshots.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {
namespace {

using snapshot::Clock;
using States = std::map<Rank, LeftState>;

constexpr std::chrono::milliseconds kFirstPause{10};
constexpr std::chrono::milliseconds kLongestPause{500};
// Who has nothing to save waits no longer for what other hosts have.
constexpr std::chrono::seconds kPatienceWithNothing{2};

// A host that a rank has left may have an older state of it.
States best_of(const std::vector<LeftState>& all, std::int32_t ranks) {
  const auto worth = [](const LeftState& s) {
    return std::tuple(s.is_clean, s.version, s.staged, s.part.version);
  };
  States best;
  for (const LeftState& state : all) {
    if (state.rank < 0 || state.rank >= ranks || state.version == kNoVersion) continue;
    const auto [at, is_new] = best.emplace(state.rank, state);
    if (!is_new && worth(at->second) < worth(state)) at->second = state;
  }
  return best;
}

// Nothing is known here of what is private: each rank's part has all that it holds.
planner::Table table_of(const States& states) {
  planner::Table table{.ranks = static_cast<Rank>(states.size())};
  for (const auto& [rank, state] : states) {
    const planner::Copy copy{rank, state.version, state.staged, state.is_clean};
    table.shards.push_back({cat("the state of rank ", rank), {copy}});
    table.reached = std::max(table.reached, state.version);
  }
  return table;
}

class LastSnapshot {
 public:
  LastSnapshot(const SnapshotWriter::Options& options, Duration time,
               const std::function<void()>& on_begin)
      : options_(options), until_(Clock::now() + time), on_begin_(on_begin) {}

  Status open(const std::vector<Rank>& ranks);
  // Nobody waits for this host: it has nothing to save, and no rank's state (as a spare host) or
  // those of all.
  [[nodiscard]] bool is_out() const { return own_.empty() || (is_alone_ && has_nothing()); }
  Result<std::string> make();

 private:
  // Neither has another host then: a step is staged by all before anybody commits it.
  [[nodiscard]] bool has_nothing() const;
  Result<std::string> meet(const HostNotes& notes);
  // The name of the run's last snapshot, if it is of this version. Empty: there is none.
  [[nodiscard]] std::string name_of(Version version) const;
  [[nodiscard]] Version loaded_by(Rank rank) const;
  Status write_parts(Version version);
  Status write_part_of(arena::Arena& arena, LeftState& state) const;
  Status name(const States& states) const;

  const SnapshotWriter::Options& options_;
  Clock::time_point until_;
  const std::function<void()>& on_begin_;
  bool is_alone_ = false;  // All ranks are here, so nobody else is waited for.
  std::uint64_t run_id_ = 0;
  std::map<Rank, arena::Arena> arenas_;
  std::vector<LeftState> own_;    // Of arenas_, in their order.
  Version version_ = kNoVersion;  // Of which the parts are written here.
  std::string name_;
};

// A rank of another host may have no state here yet, or no more.
Status LastSnapshot::open(const std::vector<Rank>& ranks) {
  is_alone_ = ranks.size() == static_cast<std::size_t>(options_.world_size);
  Status all;
  for (const Rank rank : ranks) {
    auto arena = arena::Arena::open_left(cat(options_.job_directory, "/rank-", rank, ".arena"));
    if (!arena && is_alone_) all = arena.error();
    if (!arena) continue;
    run_id_ = arena->run_id();
    own_.push_back({.rank = rank,
                    .version = arena->version(),
                    .staged = arena->staged(),
                    .is_clean = arena->losses().count == 0,
                    .loaded = loaded_by(rank)});
    arenas_.emplace(rank, *std::move(arena));
  }
  return all;
}

// 0: it is in another folder, where nobody may look for it.
Version LastSnapshot::loaded_by(Rank rank) const {
  const auto name = os::read_file(cat(options_.job_directory, '/', loaded_file(rank)));
  if (!name) return 0;
  const auto manifest = snapshot::read_manifest(options_.folder, *name);
  return manifest ? manifest->version : 0;
}

bool LastSnapshot::has_nothing() const {
  return std::all_of(own_.begin(), own_.end(),
                     [](const LeftState& state) { return state.staged <= state.loaded; });
}

Result<std::string> LastSnapshot::make() {
  const auto notes = HostNotes::open(options_.folder, run_id_);
  if (!notes) return notes.error();
  if (has_nothing()) until_ = std::min(until_, Clock::now() + kPatienceWithNothing);
  auto made = meet(*notes);
  // A host that comes later has to learn that there was nothing.
  if (made && made->empty()) return made;
  notes->remove();
  return made;
}

// The hosts come one after the other, and what is known of them grows. So all do the same again and
// again: choose the version by what is known, write the own parts, and name the snapshot once all
// parts are there. It does no harm if two name it.
Result<std::string> LastSnapshot::meet(const HostNotes& notes) {
  auto pause = kFirstPause;
  for (;;) {
    if (Status written = notes.write(own_); !written) return written.error();
    // Who has named it removes its note.
    if (version_ != kNoVersion && snapshot::read_manifest(options_.folder, name_)) return name_;
    const States states = best_of(notes.read(), options_.world_size);
    Version loaded = 0;
    for (const auto& [rank, state] : states) loaded = std::max(loaded, state.loaded);
    Error why{Blame::kWorld, ""};
    Rank next = 0;
    while (states.contains(next)) ++next;
    if (next < options_.world_size) {
      why.what = cat("no host has told in ", options_.folder, " what it has of rank ", next,
                     ": all hosts have to share that folder");
    } else if (const auto plan = planner::plan(table_of(states)); !plan.possible) {
      why.what = cat(plan.shard, " is behind that of others");
      if (is_alone_) return why;
    } else if (plan.version <= loaded) {
      return std::string();
    } else if (version_ != plan.version) {
      if (auto there = name_of(plan.version); !there.empty()) return there;
      if (version_ == kNoVersion && on_begin_) on_begin_();
      if (Status written = write_parts(plan.version); !written) return written.error();
      continue;
    } else if (std::all_of(states.begin(), states.end(), [&](const auto& entry) {
                 return entry.second.part.version == version_;
               })) {
      if (Status named = name(states); !named) return named.error();
      return name_;
    } else {
      why.what = "another host has not written its part of it";
    }
    if (Clock::now() >= until_) {
      if (has_nothing()) return std::string();
      return why;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

// Whether another one of that version can be read is not known here.
std::string LastSnapshot::name_of(Version version) const {
  const std::string name = wire::name_of_snapshot(run_id_, 0, version);
  return snapshot::read_manifest(options_.folder, name) ? name : "";
}

Status LastSnapshot::write_parts(Version version) {
  version_ = version;
  name_ = wire::name_of_snapshot(run_id_, 0, version);
  // What the job has not finished takes the room that this one needs.
  remove_unfinished(options_.folder, name_);
  auto state = own_.begin();
  for (auto& [rank, arena] : arenas_) {
    if (arena.has(version)) {
      if (arena.staged() != version) arena.unstage();
      arena.finish();
      if (Status written = write_part_of(arena, *state); !written) return written;
    }
    ++state;
  }
  return {};
}

Status LastSnapshot::write_part_of(arena::Arena& arena, LeftState& state) const {
  // Of a name of its own: the agent may still write a part that the rank has left.
  const std::string path = cat(options_.job_directory, "/rank-", state.rank, ".last");
  const PartOptions part{.rank = state.rank, .workers = options_.world_size, .shared_bytes = 0};
  const auto given = ArenaPart::of(arena, part);
  if (!given) return given.error();
  if (Status written = given->write(path); !written) return written;
  const auto stored = snapshot::store_shard(path, options_.folder, name_, state.rank, until_);
  ::unlink(path.c_str());
  if (!stored) return stored.error();
  state.version = state.staged = version_;
  state.part = {version_, stored->bytes, stored->digest, arena.digest()};
  return {};
}

Status LastSnapshot::name(const States& states) const {
  wire::Snapshot snapshot{.word = wire::SnapshotWord::kName, .version = version_, .name = name_};
  for (const auto& [rank, state] : states) {
    if (state.part.shared != states.begin()->second.part.shared) {
      return Error{Blame::kWorld, cat("rank ", rank, " holds other parameters than rank 0")};
    }
    snapshot.files.push_back(
        {.rank = rank, .bytes = state.part.bytes, .digest = state.part.digest});
  }
  return name_snapshot(options_, snapshot);
}

}  // namespace

Result<std::string> leave_last_snapshot(const SnapshotWriter::Options& options,
                                        const std::vector<Rank>& ranks, Duration time,
                                        const std::function<void()>& on_begin) {
  LastSnapshot last(options, time, on_begin);
  const Status opened = last.open(ranks);
  if (last.is_out()) return std::string();
  if (!opened) return opened.error();
  return last.make();
}

}  // namespace holdfast::runtime
