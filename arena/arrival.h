// Arrival: an arena becomes a copy of what other ranks have of one version: the state from a rank's
// arena, and perhaps the private bytes that only its own rank had from the arena in which they are
// held for it. Each of the two is a file of this host, or comes piece by piece from another one:
// then straight to where it is to lie.
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
#include "base/result.h"
#include "os/shared_file.h"

namespace holdfast::arena {

struct Head;

// What another host needs of a file at one version: no gradients. In order, none empty. The first
// is the file's beginning.
struct Departure {
  os::Found file;
  std::vector<Range> ranges;
};
// So many private bytes, from the first on; of what is held, those that are in use. Errors: there
// is no such file of an arena; the version is not held.
[[nodiscard]] Result<Departure> departure(const std::string& path, Version version,
                                          std::uint64_t private_bytes);

class Arrival {
 public:
  enum class From : std::uint8_t { kRank, kHolder };

  // So many private bytes, from the first on, come with the state. Those behind come from a holder
  // if they are held for `ward`; kNoRank: they stay as they are. `arena` outlives this.
  Arrival(Arena& arena, Version version, std::uint64_t private_bytes, Rank ward = kNoRank)
      : arena_(arena),
        version_(version),
        private_bytes_(private_bytes),
        held_(Layout::held_for(ward, arena.layout().private_bytes - private_bytes)),
        rest_is_here_(ward == kNoRank) {}

  // From a file of this host. A rank's arena must stand still at the version. Compares the digests
  // of both.
  [[nodiscard]] Status copy(From from, const std::string& path);

  // From another host: which ranges of a file of so many bytes come.
  struct Coming {
    From from = From::kRank;
    std::string name;  // For errors.
    std::uint64_t file_bytes = 0;
    std::vector<Range> ranges;
  };
  // Where the bytes of a range are to lie. Each is asked for when those before it have come; the
  // first one begins anew. Errors: this is not what is expected.
  [[nodiscard]] Result<std::span<std::byte>> place(const Coming& coming, std::size_t range);
  // All of them have come as they were sent: their digest was right.
  [[nodiscard]] Status came(const Coming& coming);

  // The arena is at the version. Errors: not all is here.
  [[nodiscard]] Status end();

 private:
  [[nodiscard]] bool& is_here(From from) {
    return from == From::kRank ? state_is_here_ : rest_is_here_;
  }
  Status see(From from, const Head& head, const std::string& name);
  Status see(const Coming& coming);
  [[nodiscard]] std::span<std::byte> place_of(From from, const Range& range);

  Arena& arena_;
  const Version version_;
  const std::uint64_t private_bytes_;
  const Layout held_;  // The layout of what is held.
  bool state_is_here_ = false;
  bool rest_is_here_;
  std::vector<std::byte> beginning_;  // Of the file that comes now.
  std::vector<Range> expected_;       // The ranges of the file that was seen last.
  Position position_;
};

}  // namespace holdfast::arena
