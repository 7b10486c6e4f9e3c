// Tables in files that others can read: a folder with a safetensors file for each table and server,
// and a manifest, tables.json. A file has the tensors `keys` (I64), `rows` (F32 or BF16), and, if
// the optimizer has a state, `state` (F32); row i of each belongs together.
//
// The files' names have the run and the step, so those of an older save stay whole until the
// manifest names the new ones. Any number of servers can read what any other number has saved. A
// folder is for one job at a time. importing.h replaces the rows of one table.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "base/ids.h"
#include "base/result.h"
#include "table/spec.h"
#include "table/tables.h"

namespace holdfast::table {

// What one save consists of.
struct Saved {
  std::vector<Spec> specs;
  std::uint64_t run_id = 0;
  Version step = 0;  // The rows are those after this step.
  Rank servers = 0;
  // Of each table: its files within the folder, as the manifest has them. Empty: those of save().
  std::vector<std::vector<std::string>> files = {};
  bool operator==(const Saved&) const = default;

  // The name that save() gives a file.
  [[nodiscard]] std::string file(std::size_t table, Rank server) const;
  [[nodiscard]] std::vector<std::string> files_of(std::size_t table) const;
};

// Writes the rows of server number `server`. A file is on the disk before it has its name. Makes
// the folder if need be. Errors (kWorld) name the file.
[[nodiscard]] Status save(const Tables& tables, const std::string& folder, const Saved& saved,
                          Rank server);
// Removes what save() has written, unless the manifest names it: the save has failed elsewhere.
void forget(const std::string& folder, const Saved& saved, Rank server);
// Writes the manifest, once all files are there, and removes files of other saves. Error (kUser): a
// file is not there, as on a disk that not all hosts share.
[[nodiscard]] Status save_manifest(const std::string& folder, const Saved& saved);
// Errors (kUser): there is none, or it makes no sense.
[[nodiscard]] Result<Saved> read_manifest(const std::string& folder);

// Fills fresh tables with the rows whose keys are `mine`, and commits them as version 0. A kill
// before that leaves them fresh. Errors: kUser: files that are missing or damaged, other tables
// (names the first difference), a key that comes twice; kWorld: no room.
[[nodiscard]] Status load(Tables& tables, const std::string& folder,
                          const std::function<bool(std::uint64_t key)>& mine,
                          const arena::Position& position);

}  // namespace holdfast::table
