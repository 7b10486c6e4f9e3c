// A rank's part of a snapshot (snapshot/shard.h), made of an arena and read back into one.
//
// What all workers hold alike is in it once for all of them: each gives an equal slice. What only
// this rank has is in it whole. A rank that loads takes its own part, and the slices of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "base/ids.h"
#include "base/result.h"
#include "snapshot/shard.h"

namespace holdfast::runtime {

struct PartOptions {
  Rank rank = 0;
  std::int32_t workers = 1;
  std::uint64_t shared_bytes = 0;  // How many of the first private bytes all workers hold alike.
};

// What this rank gives of the committed version. Most of it is memory of the arena's, which stays
// as it is until the arena's next update(), or until other state comes into it.
class ArenaPart {
 public:
  // Requires: no step is staged.
  static Result<ArenaPart> of(const arena::Arena& arena, const PartOptions& options);

  // Writes it to a new file. May be called in another thread.
  [[nodiscard]] Status write(const std::string& path) const;

 private:
  snapshot::About about_;
  std::vector<std::byte> head_;
  std::vector<snapshot::Piece> pieces_;  // The first is of head_.
};

// Makes the arena hold the version of the snapshot `name` in the folder `dir`, and returns how many
// bytes were read. From the first byte on the arena is fresh, and after an error it stays so.
// Errors: kUser: the snapshot is of another model or optimizer. kWorld: a file is missing or
// damaged, or is of another version.
[[nodiscard]] Result<std::uint64_t> load_parts(arena::Arena& arena, const PartOptions& options,
                                               Version version, const std::string& dir,
                                               const std::string& name);

}  // namespace holdfast::runtime
