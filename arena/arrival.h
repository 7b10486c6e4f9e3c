// Arrival: an arena becomes a copy of what other ranks have of one version: the state from a rank's
// arena, and perhaps the private bytes that only its own rank had from a copy that is held for it.
// Each of the two is a file of this host, or comes piece by piece from another one: then straight
// to where it is to lie.
//
// Nothing of the arena is touched before the file's beginning has shown that it is what is
// expected. From then on the arena is fresh, and after an error or a death it stays so. Each of the
// two may be begun anew. end() comes last.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/private_copy.h"
#include "base/result.h"

namespace holdfast::arena {

// What another host needs of an arena's file at `version`: no gradients, and of the private part so
// many bytes, from the first on. In order, none empty. The first is the file's beginning.
[[nodiscard]] std::vector<Range> ranges_to_copy(const Layout& layout, Version version,
                                                std::uint64_t private_bytes);

class Arrival {
 public:
  // So many private bytes, from the first on, come with the state. Those behind come with the held
  // copy if there is one; else they stay as they are. `arena` outlives this.
  Arrival(Arena& arena, Version version, std::uint64_t private_bytes, bool has_held)
      : arena_(arena), version_(version), private_bytes_(private_bytes), has_held_(has_held) {}

  // From files of this host. The arena at `path` must stand still at the version, and is of the
  // same run and layout. Compares the digests of both.
  [[nodiscard]] Status copy(const std::string& path);
  [[nodiscard]] Status copy_held(const PrivateCopy& held);

  // From other hosts: which ranges of a file of so many bytes come.
  struct Coming {
    std::uint64_t file_bytes = 0;
    std::vector<Range> ranges;
    std::string from;  // For errors: whose.
  };
  // Where the bytes of a range are to lie. Each is asked for when those before it have come; the
  // first one begins anew. Errors: this is not what is expected.
  [[nodiscard]] Result<std::span<std::byte>> place(const Coming& coming, std::size_t range);
  [[nodiscard]] Result<std::span<std::byte>> place_held(const Coming& coming, std::size_t range,
                                                        Rank ward);
  // All of them have come as they were sent: their digest was right.
  [[nodiscard]] Status came(const Coming& coming);
  [[nodiscard]] Status came_held(const Coming& coming, Rank ward);

  // The arena is at the version. Errors: not all is here.
  [[nodiscard]] Status end();

 private:
  Result<std::span<std::byte>> begin_with(const Range& beginning, bool& is_here);
  Status see_state(const Coming& coming);
  Status see_held(const Coming& coming, Rank ward);
  [[nodiscard]] std::uint64_t own_bytes() const;

  Arena& arena_;
  const Version version_;
  const std::uint64_t private_bytes_;
  const bool has_held_;
  std::vector<std::byte> beginning_;  // Of the file that comes now.
  std::vector<Range> expected_;       // The ranges of it.
  std::vector<Range> used_;           // Of what is held: where they belong behind private_bytes_.
  Position position_;
  bool state_is_here_ = false;
  bool held_is_here_ = false;
};

}  // namespace holdfast::arena
