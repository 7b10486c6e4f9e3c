// Puts rows of other programs into a save: the rows of one table are those of a file, as
// exporting.h writes it, or as anybody writes it with `keys` (I64), `rows` (F32 or BF16) and, if
// need be, `state` (F32). All other tables stay.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "table/spec.h"

namespace holdfast::table {

struct Imported {
  Spec spec;
  std::uint64_t rows = 0;
  std::uint64_t greatest_key = 0;  // If there are rows.
  std::uint64_t updates = 0;       // Adam's count, from here on.
  bool has_state = false;          // Else each row has the optimizer's first state.
  bool is_rounded = false;         // The file has float32, and the table keeps bfloat16.
};

// Replaces the rows of table `name` of the save in `folder`. The manifest is written last, so an
// older save is whole until then. Takes 8 bytes of memory for each row. The update count is that of
// the file's metadata, if it has a state, and else 0. Requires: no job saves or loads there.
// Errors: kUser: no such table; the file is none of such rows, has a key twice, or a number that no
// row may have; files of the save that load() would refuse; kWorld: it can not be written, or
// somebody else writes there. The save is as it was then.
[[nodiscard]] Result<Imported> import_table(const std::string& file, const std::string& folder,
                                            const std::string& name);

}  // namespace holdfast::table
