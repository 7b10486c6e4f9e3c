#include "runtime/worker/table_parts.h"

#include <cerrno>
#include <utility>

#include "base/number.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/mapping.h"
#include "runtime/jobs/part_files.h"
#include "snapshot/shard.h"
#include "table/arrival.h"

namespace holdfast::runtime {
namespace {

constexpr const char* kTablesKind = "a parameter server's part of a snapshot";

std::string name_of_range(std::size_t number) {
  return cat("range.", number);
}

}  // namespace

Status write_table_part(const table::Tables& tables, const std::string& from, Rank rank,
                        const std::string& path) {
  const auto departure = table::departure(from, tables.specs(), tables.version());
  if (!departure) return departure.error();
  std::vector<os::Mapping> mapped;  // The file is sparse, and may be larger than all addresses.
  std::vector<snapshot::Piece> pieces;
  for (const auto& [offset, bytes] : departure->ranges) {
    mapped.push_back(os::Mapping::of(departure->file.file, offset, bytes, os::Access::kRead));
    if (!mapped.back()) return os::system_error(cat("cannot read ", from), errno);
    pieces.push_back({name_of_range(pieces.size()), mapped.back().bytes()});
  }
  return snapshot::write_shard(path,
                               {{"kind", kTablesKind},
                                {"rank", cat(rank)},
                                {"version", cat(tables.version())},
                                {"run_id", cat(tables.run_id())}},
                               pieces);
}

Result<std::uint64_t> load_table_part(table::Tables& tables, Rank rank, Version version,
                                      const std::string& dir, const std::string& name) {
  const auto files = PartFiles::open(dir, name);
  if (!files) return files.error();
  const auto unfit = [&](const std::string& what) { return files->unfit(rank, what); };
  const auto shard = files->part(rank);
  if (!shard) return shard.error();
  std::uint64_t run_id = 0;
  const bool fits = shard->about("kind") == kTablesKind && shard->about("rank") == cat(rank) &&
                    shard->about("version") == cat(version) &&
                    read_number(shard->about("run_id"), run_id);
  if (!fits) {
    return unfit(cat("it is not the part of a parameter server that is rank ", rank,
                     ", of version ", version));
  }
  std::vector<arena::Range> ranges;
  for (const auto& tensor : shard->tensors()) ranges.push_back({tensor.at, tensor.bytes});
  if (ranges.empty()) return unfit("it is empty");
  table::Arrival arrival(tables, run_id, version);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto& tensor = shard->tensors()[i];
    if (tensor.name != name_of_range(i)) return unfit("its tensors are others");
    const auto to = arrival.place(ranges, i);
    // Other tables than this program's are named so.
    if (!to) return Error{to.error().blame, cat(files->path(rank), ": ", to.error().what)};
    if (const auto read = shard->read(tensor, *to); !read) {
      return PartFiles::unreadable(read.error());
    }
  }
  if (const auto ended = arrival.end(); !ended) return unfit(ended.error().what);
  return arrival.bytes();
}

}  // namespace holdfast::runtime
