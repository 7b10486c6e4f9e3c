// What a folder of saved tables holds, and whether load() could read it. Changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "table/saved.h"

namespace holdfast::table {

// One table of a save.
struct Listed {
  std::uint64_t rows = 0;
  std::uint64_t bytes = 0;    // Of its files.
  std::uint64_t updates = 0;  // Adam's count.
  // A sentence each, with the file's name. If there are any, the numbers are those of the files
  // that can be used.
  std::vector<std::string> problems;
};

struct Listing {
  Saved saved;
  std::vector<Listed> tables;  // As saved.specs.
};

// Reads the heads of all files, and with `verifies` all rows: their digests, and that no key comes
// twice. That takes 8 bytes of memory for each row of a table. Error (kUser): there is no manifest,
// or it makes no sense.
[[nodiscard]] Result<Listing> list(const std::string& folder, bool verifies);

// Which table of a save has this name; empty: the only one. Error (kUser): there is none, or there
// are several; names them.
[[nodiscard]] Result<std::size_t> table_named(const Saved& saved, const std::string& folder,
                                              const std::string& name);

}  // namespace holdfast::table
