// One file with all rows of a saved table, in the order of their keys, for other programs: a
// safetensors file with `keys` (I64), `rows` (F32 or BF16) and, if the optimizer has a state,
// `state` (F32). Its metadata say what importing.h asks for: `optimizer`, and `updates`, Adam's
// count; and for people `table` and `step`.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "table/spec.h"

namespace holdfast::table {

struct Exported {
  Spec spec;
  std::uint64_t rows = 0;
};

// Writes table `name` of a save to `file`, which gets its name once it is whole; `name` empty: the
// only one. Takes 16 bytes of memory for each row. A file that is there is replaced if `replaces`.
// Errors: kUser: no such table, files that load() would refuse, a file that is there, a key above
// 2^63 - 1; kWorld: it can not be written.
[[nodiscard]] Result<Exported> export_table(const std::string& folder, const std::string& name,
                                            const std::string& file, bool replaces);

}  // namespace holdfast::table
