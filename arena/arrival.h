// Arrival: fills an arena with one version that other ranks have. There are two sources. The state
// comes from another rank's arena (kRank). Private bytes that no other rank has come from the arena
// that a holder keeps for this rank (kHolder). Each source is a file of this host, or comes from
// another host piece by piece, straight to its place in the arena.
//
// The arena is not touched before the beginning of the source's file has shown that it is what is
// expected. From then on the arena is fresh, and after an error or a death it stays so. Each source
// may be begun anew. end() comes last.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "base/result.h"
#include "os/shared_file.h"

namespace holdfast::arena {

struct Damage;
struct Head;

// The ranges of an arena file that another host needs at one version: all but the gradients.
// Ascending, none empty. The first is the file's beginning.
struct Departure {
  os::Found file;
  std::vector<Range> ranges;
};
// `private_bytes`: how many of a rank's private bytes, from the first on. (Of an arena that is held
// for another rank, all that are in use.) Errors: there is no such arena file; what is held is not
// at this version.
[[nodiscard]] Result<Departure> departure(const std::string& path, Version version,
                                          std::uint64_t private_bytes);

class Arrival {
 public:
  enum class From : std::uint8_t { kRank, kHolder };

  // The first `private_bytes` private bytes come with the state. The rest come from the arena that
  // is held for rank `ward`; kNoRank: they stay as they are. `arena` must outlive this.
  Arrival(Arena& arena, Version version, std::uint64_t private_bytes, Rank ward = kNoRank)
      : arena_(arena),
        version_(version),
        private_bytes_(private_bytes),
        held_(Layout::held_for(ward, arena.layout().private_bytes - private_bytes)),
        rest_is_here_(ward == kNoRank) {}

  // Copies from a file of this host. Requires: a rank's arena stands still at the version. Compares
  // the digests of both arenas.
  [[nodiscard]] Status copy(From from, const std::string& path);

  // Copies only what is lost, from a rank's arena file of this host that stands still at the
  // version, as this arena does. Requires: nothing private is lost. No end() is needed. After an
  // error the losses still stand in the arena, as do those that came later.
  [[nodiscard]] Status repair(const std::string& path, const Damage& damage);

  // What comes from another host: ranges of a file of `file_bytes` bytes.
  struct Coming {
    From from = From::kRank;
    std::string name;  // For errors.
    std::uint64_t file_bytes = 0;
    std::vector<Range> ranges;
    bool of_any_run = false;  // It is a snapshot's: an earlier run of the job has left it.
  };
  // The memory for the bytes of range number `range`. Call it when all earlier ranges have come;
  // range 0 begins the source anew. Error: what came is not what is expected.
  [[nodiscard]] Result<std::span<std::byte>> place(const Coming& coming, std::size_t range);
  // Takes the memory for a part of such a range, by its place in the file, before it is written to
  // (Arena::take()). Requires: place() was called for the range.
  [[nodiscard]] Status take(From from, const Range& part);
  // Call it when all ranges have come, and their digest was right.
  [[nodiscard]] Status came(const Coming& coming);

  // Commits the version in the arena. Error: not all has come.
  // `used`: as in StagedStep.
  [[nodiscard]] Status end(std::span<const Range> used = {});

  // How many bytes were copied, or have come.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] bool& is_here(From from) {
    return from == From::kRank ? state_is_here_ : rest_is_here_;
  }
  Status see(From from, const Head& head, const std::string& name, bool of_any_run = false);
  Status see(const Coming& coming);
  // Where the range lies within private_bytes(); nothing: before them.
  [[nodiscard]] std::optional<Range> private_range(From from, const Range& range) const;
  [[nodiscard]] std::span<std::byte> place_of(From from, const Range& range);

  Arena& arena_;
  const Version version_;
  const std::uint64_t private_bytes_;
  const Layout held_;  // The layout of the arena that is held for `ward`.
  bool state_is_here_ = false;
  bool rest_is_here_;
  std::vector<std::byte> beginning_;  // The beginning of the file that comes now.
  std::vector<Range> expected_;       // The ranges that the last checked file has to send.
  Position position_;
  std::uint64_t bytes_ = 0;
};

}  // namespace holdfast::arena
