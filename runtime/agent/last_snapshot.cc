#include "runtime/agent/last_snapshot.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "arena/arena.h"
#include "base/text.h"
#include "core/planner/planner.h"
#include "runtime/jobs/arena_parts.h"
#include "runtime/jobs/snapshots.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {
namespace {

// Nothing is known here of what is private: each rank's part has all that it holds.
planner::Table table_of(const std::vector<arena::Arena>& arenas) {
  planner::Table table{.ranks = static_cast<Rank>(arenas.size())};
  for (Rank rank = 0; rank < table.ranks; ++rank) {
    const arena::Arena& arena = arenas[static_cast<std::size_t>(rank)];
    const bool is_clean = arena.losses().count == 0;
    const planner::Copy copy{rank, arena.version(), arena.staged(), is_clean};
    table.shards.push_back({cat("the state of rank ", rank), {copy}});
    table.reached = std::max(table.reached, arena.version());
  }
  return table;
}

// The name of the run's snapshot of this version. Empty: there is none.
std::string name_of(const std::string& folder, std::uint64_t run_id, Version version) {
  const auto found = snapshot::find(folder);
  if (!found) return {};
  const auto& whole = found->whole;
  const auto one = std::find_if(whole.begin(), whole.end(), [&](const auto& each) {
    return each.manifest.run_id == run_id && each.manifest.version == version;
  });
  return one == whole.end() ? "" : one->name;
}

Status write(const SnapshotWriter::Options& options, const arena::Arena& arena,
             const PartOptions& part, wire::Snapshot& snapshot, snapshot::Clock::time_point until) {
  const std::string path =
      cat(options.job_directory, '/', parts_begin(part.rank), snapshot.version);
  auto written = write_part(arena, part, path);
  if (!written) return written;
  const auto stored = snapshot::store_shard(path, options.folder, snapshot.name, part.rank, until);
  ::unlink(path.c_str());
  if (!stored) return stored.error();
  snapshot.files.push_back({.rank = part.rank, .bytes = stored->bytes, .digest = stored->digest});
  return {};
}

}  // namespace

Result<std::string> leave_last_snapshot(const SnapshotWriter::Options& options, Duration time) {
  const auto until = snapshot::Clock::now() + time;
  std::vector<arena::Arena> arenas;
  for (Rank rank = 0; rank < options.world_size; ++rank) {
    auto arena = arena::Arena::open_left(cat(options.job_directory, "/rank-", rank, ".arena"));
    if (!arena) return arena.error();
    arenas.push_back(*std::move(arena));
  }
  const auto plan = planner::plan(table_of(arenas));
  if (!plan.possible) return Error{Blame::kWorld, cat(plan.shard, " is behind that of others")};
  wire::Snapshot snapshot{.word = wire::SnapshotWord::kName,
                          .version = plan.version,
                          .name = wire::name_of_snapshot(arenas.front().run_id(), 0, plan.version)};
  auto there = name_of(options.folder, arenas.front().run_id(), plan.version);
  if (!there.empty()) return there;
  PartOptions part{.rank = 0, .workers = options.world_size, .shared_bytes = 0};
  for (arena::Arena& arena : arenas) {
    if (arena.staged() != plan.version) arena.unstage();
    arena.finish();
    const auto done = write(options, arena, part, snapshot, until);
    if (!done) return done.error();
    ++part.rank;
  }
  if (const auto named = name_snapshot(options, snapshot); !named) return named.error();
  return snapshot.name;
}

}  // namespace holdfast::runtime
