// A parameter server's part of a snapshot (snapshot/shard.h): all of its rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "table/tables.h"

namespace holdfast::runtime {

// Writes what the table file at `from` has of the tables' committed version to a new file.
// Requires: no step is staged.
[[nodiscard]] Status write_table_part(const table::Tables& tables, const std::string& from,
                                      Rank rank, const std::string& path);

// Fills fresh tables with the version that the snapshot `name` in `dir` has of this rank, and
// returns how many bytes were read. Errors: its file is missing or damaged, or of other tables.
[[nodiscard]] Result<std::uint64_t> load_table_part(table::Tables& tables, Rank rank,
                                                    Version version, const std::string& dir,
                                                    const std::string& name);

}  // namespace holdfast::runtime
