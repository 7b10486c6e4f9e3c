// Copies of a server's tables. What is sent of a version is the beginning of the file (its head and
// the words of each table), and of each table its keys, rows and ages. The receiver makes its own
// index, and has its regions where its own file system wants them.
//
// Thread-safety: departure() on any thread; an Arrival on one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "base/ids.h"
#include "base/result.h"
#include "os/shared_file.h"
#include "table/tables.h"

namespace holdfast::table {

// The ranges of a table file that another host needs at one version. Ascending, none empty. The
// first is the file's beginning.
struct Departure {
  os::Found file;
  std::vector<arena::Range> ranges;
};
// Requires: the tables stand still at the version. Errors: there is no such file; it is damaged, of
// other tables, or at another version.
[[nodiscard]] Result<Departure> departure(const std::string& path, const std::vector<Spec>& specs,
                                          Version version);

// Fills fresh tables with one version that another file has. Until end() they are fresh.
class Arrival {
 public:
  // Requires: `tables` outlive this, and are fresh.
  Arrival(Tables& tables, std::uint64_t run_id, Version version);

  // All of it, from a file of this host.
  [[nodiscard]] Status copy(const std::string& path);
  // The memory for the bytes of range number `range`. Call it when all earlier ranges have come;
  // range 0 begins anew. Errors: what came is not what is expected; there is no room.
  [[nodiscard]] Result<std::span<std::byte>> place(const std::vector<arena::Range>& ranges,
                                                   std::size_t range);
  // Makes the index, and commits the version. Call it when all ranges have come.
  [[nodiscard]] Status end();

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // That have come.

 private:
  Status see();

  Tables& tables_;
  const std::uint64_t run_id_;
  const Version version_;
  std::vector<std::byte> beginning_;
  std::vector<std::uint64_t> rows_;             // By table: how many come.
  std::vector<std::span<std::byte>> expected_;  // Where the ranges after the first come to.
  std::uint64_t bytes_ = 0;
};

}  // namespace holdfast::table
