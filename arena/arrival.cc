#include "arena/arrival.h"

#include <cstring>

#include "arena/head.h"
#include "arena/losses.h"
#include "base/text.h"

namespace holdfast::arena {
namespace {

constexpr std::uint64_t kLongestBeginning = std::uint64_t{1} << 28;

Error moved(const std::string& path, Version expected) {
  return {Blame::kPeer, cat("The arena ", path, " does not stand still at version ", expected,
                            "; nothing usable was copied.")};
}

// Whether the file has this version complete. In an arena that is held for another rank, a staged
// step is complete: it needs no update.
bool has(const Header& header, const Layout& layout, Version v) {
  const Version version = load(header.version);
  if (version == kNoVersion) return false;
  if (layout.ward != kNoRank) return v == version || v == load(header.staged);
  return load(header.losses.count) == 0 && v == version && load(header.updating) != v + 1;
}

std::vector<Range> ranges_of(const Head& head, Version version, std::uint64_t private_bytes) {
  const Layout& layout = head.layout;
  const std::uint64_t from = layout.parameters_offset();
  const std::uint64_t at = layout.private_offset(version % 2);
  std::vector<Range> ranges{{0, layout.gradients_offset()}};
  const auto add = [&ranges](const Range& range) {
    if (range.bytes > 0) ranges.push_back(range);
  };
  if (layout.ward == kNoRank) {
    add({from, layout.private_offset(0) - from});
    add({at, private_bytes});
  } else {
    for (const auto& [offset, bytes] : used_of(head.header, layout, version)) {
      add({at + offset, bytes});
    }
  }
  return ranges;
}

}  // namespace

Result<Departure> departure(const std::string& path, Version version, std::uint64_t private_bytes) {
  auto file = file_at(path, os::Access::kRead);
  if (!file) return file.error();
  if (!file->found.file) return Error{Blame::kWorld, cat("there is no ", path)};
  const auto& [header, layout] = file->head;
  if (layout.ward != kNoRank) {
    if (!has(header, layout, version)) return moved(path, version);
    if (auto sound = check_words(header, layout, path); !sound) return sound.error();
  }
  return Departure{std::move(file->found), ranges_of(file->head, version, private_bytes)};
}

// Checks that a file's head is what is expected, and computes which of its ranges have to come.
Status Arrival::see(From from, const Head& head, const std::string& name, bool of_any_run) {
  if (!of_any_run && head.header.fixed.run_id != arena_.run_id()) {
    return Error{Blame::kPeer, cat("The arena ", name, " is of another run than ", arena_.path(),
                                   "; a copy would be wrong.")};
  }
  const std::string different =
      difference(head.layout, from == From::kRank ? arena_.layout() : held_);
  if (!different.empty()) {
    return Error{Blame::kUser, cat("its model or optimizer differs from that of ", name, ": ",
                                   different, "; start every rank with the same program")};
  }
  if (head.header.losses.count != 0) {
    return Error{Blame::kPeer, cat("memory errors have taken pages of ", name,
                                   " as well: no copy of the state is whole")};
  }
  if (version_ == kNoVersion || !has(head.header, head.layout, version_)) {
    return moved(name, version_);
  }
  if (auto sound = check_words(head.header, head.layout, name); !sound) return sound;
  expected_ = ranges_of(head, version_, private_bytes_);
  if (from == From::kRank) position_ = head.header.records[version_ % 2].position;
  return {};
}

std::optional<Range> Arrival::private_range(From from, const Range& range) const {
  const Layout& layout = from == From::kRank ? arena_.layout() : held_;
  if (range.offset < layout.private_offset(0)) return std::nullopt;
  const std::uint64_t at = range.offset - layout.private_offset(version_ % 2);
  return Range{from == From::kRank ? at : private_bytes_ + at, range.bytes};
}

std::span<std::byte> Arrival::place_of(From from, const Range& range) {
  const auto own = private_range(from, range);
  if (own) return arena_.private_bytes(version_).subspan(own->offset, own->bytes);
  return {reinterpret_cast<std::byte*>(arena_.parameters().data()), range.bytes};
}

Status Arrival::take(From from, const Range& part) {
  const auto own = private_range(from, part);
  return own ? arena_.take(version_, *own) : Status{};
}

// ---- Of this host -------------------------------------------------------------------------------

Status Arrival::copy(From from, const std::string& path) {
  is_here(from) = false;
  const Result<ArenaFile> file = file_at(path, os::Access::kRead);
  if (!file) return file.error();
  if (!file->found.file) return Error{Blame::kWorld, cat("There is no arena ", path, ".")};
  if (auto seen = see(from, file->head, path); !seen) return seen;

  arena_.invalidate();
  const os::Mapping& there = file->mapping;
  for (const Range& range : std::span(expected_).subspan(1)) {
    if (Status taken = take(from, range); !taken) return taken;
    std::memcpy(place_of(from, range).data(), there.at(range.offset), range.bytes);
    bytes_ += range.bytes;
  }
  const Layout& layout = file->head.layout;
  const std::uint64_t sum = digest_of(streams_of(there, layout), layout.region_floats());
  if (!has(*there.as<Header>(0), layout, version_)) return moved(path, version_);
  if (from == From::kRank && sum != arena_.digest()) {
    return Error{Blame::kWorld,
                 cat("The copy of ", path, " in ", arena_.path(),
                     " differs from it: memory that does not keep what is written?")};
  }
  is_here(from) = true;
  return {};
}

Status Arrival::repair(const std::string& path, const Damage& damage) {
  const Result<ArenaFile> file = file_at(path, os::Access::kRead);
  if (!file) return file.error();
  if (!file->found.file) return Error{Blame::kWorld, cat("There is no arena ", path, ".")};
  if (auto seen = see(From::kRank, file->head, path); !seen) return seen;
  const os::Mapping& there = file->mapping;
  const std::uint64_t state = arena_.layout().parameters_offset();
  std::byte* here = reinterpret_cast<std::byte*>(arena_.parameters().data());
  for (const auto& [offset, bytes] : damage.shared) {
    std::memcpy(here + (offset - state), there.at(offset), bytes);
    bytes_ += bytes;
    const bool is_equal = std::memcmp(here + (offset - state), there.at(offset), bytes) == 0;
    if (!is_equal && load(arena_.losses().count) == damage.count) {
      return Error{Blame::kWorld, cat("what was copied from ", path, " differs from it")};
    }
  }
  if (!has(*there.as<Header>(0), file->head.layout, version_)) return moved(path, version_);
  arena_.clear_losses(damage.count);
  return {};
}

// ---- Of another host ----------------------------------------------------------------------------

// Checks the beginning of the file, which has come, and makes the arena fresh.
Status Arrival::see(const Coming& coming) {
  const auto head = head_in(beginning_, coming.file_bytes, coming.name);
  if (!head) return head.error();
  if (auto seen = see(coming.from, *head, coming.name, coming.of_any_run); !seen) return seen;
  if (coming.ranges != expected_) {
    return Error{Blame::kPeer, cat("other parts come of ", coming.name, " than version ", version_,
                                   " has; start every rank with the same program")};
  }
  arena_.invalidate();
  return {};
}

Result<std::span<std::byte>> Arrival::place(const Coming& coming, std::size_t range) {
  const Range& which = coming.ranges.at(range);
  if (range == 0) {
    is_here(coming.from) = false;
    if (which.offset != 0 || which.bytes > kLongestBeginning) {
      return Error{Blame::kPeer, "what comes of a state does not begin with its file's beginning"};
    }
    beginning_.assign(which.bytes, std::byte{});
    return std::span(beginning_);
  }
  if (range == 1) {
    if (auto seen = see(coming); !seen) return seen.error();
  }
  return place_of(coming.from, which);
}

Status Arrival::came(const Coming& coming) {
  for (const Range& range : coming.ranges) bytes_ += range.bytes;
  auto seen = see(coming);  // Again: only now the digest has shown that the beginning is unchanged.
  is_here(coming.from) = seen.has_value();
  return seen;
}

Status Arrival::end(std::span<const Range> used) {
  if (!state_is_here_ || !rest_is_here_) {
    return Error{Blame::kWorld,
                 cat("not all of version ", version_, " has come to ", arena_.path())};
  }
  arena_.begin(version_, position_, used);
  return {};
}

}  // namespace holdfast::arena
