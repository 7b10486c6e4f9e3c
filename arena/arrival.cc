#include "arena/arrival.h"

#include <cstring>

#include "arena/head.h"
#include "base/assert.h"
#include "base/text.h"
#include "os/shared_file.h"

namespace holdfast::arena {
namespace {

constexpr std::uint64_t kLongestBeginning = std::uint64_t{1} << 28;

Error moved(const std::string& path, Version expected) {
  return {Blame::kPeer, cat("The arena ", path, " does not stand still at version ", expected,
                            "; nothing usable was copied.")};
}

Status see_that_it_fits(const Arena& arena, const Fixed& there, const std::string& path,
                        const std::function<std::string(std::uint64_t)>& read_text) {
  if (there.run_id != arena.run_id()) {
    return Error{Blame::kPeer, cat("The arena ", path, " is of another run than ", arena.path(),
                                   "; a copy would be wrong.")};
  }
  const auto different = layout_difference(there, arena.layout(), path, read_text);
  if (!different) return different.error();
  if (different->empty()) return {};
  return Error{Blame::kUser, cat("its model or optimizer differs from that of ", path, ": ",
                                 *different, "; start every rank with the same program")};
}

// Of a file's bytes from its beginning on.
std::function<std::string(std::uint64_t)> text_in(std::span<const std::byte> bytes) {
  return [bytes](std::uint64_t size) -> std::string {
    if (bytes.size() < kLayoutOffset || size > bytes.size() - kLayoutOffset) return {};
    return {reinterpret_cast<const char*>(bytes.data()) + kLayoutOffset, size};
  };
}

}  // namespace

std::vector<Range> ranges_to_copy(const Layout& layout, Version version,
                                  std::uint64_t private_bytes) {
  const std::uint64_t from = layout.parameters_offset();
  std::vector<Range> ranges{{0, layout.gradients_offset()}};
  for (const Range& range : {Range{from, layout.private_offset(0) - from},
                             Range{layout.private_offset(version % 2), private_bytes}}) {
    if (range.bytes > 0) ranges.push_back(range);
  }
  return ranges;
}

std::uint64_t Arrival::own_bytes() const {
  return arena_.layout().private_bytes - private_bytes_;
}

// ---- Of this host -------------------------------------------------------------------------------

Status Arrival::copy(const std::string& path) {
  const Result<os::Found> found = os::find_file(path, os::Access::kRead);
  if (!found) return found.error();
  if (!found->file) return Error{Blame::kWorld, cat("There is no arena ", path, ".")};
  if (found->bytes < sizeof(Header)) return damaged(path, "is truncated");
  const Result<os::Mapping> source = os::map_file(*found, os::Access::kRead, path);
  if (!source) return source.error();
  const auto header = header_in(source->bytes(), found->bytes, path);
  if (!header) return header.error();
  auto fits = see_that_it_fits(arena_, header->fixed, path, text_in(source->bytes()));
  if (!fits) return fits;
  const Header& there = *source->as<Header>(0);
  const auto stands = [&] {
    return load(there.version) == version_ && load(there.updating) != version_ + 1;
  };
  if (version_ == kNoVersion || !stands()) return moved(path, version_);

  arena_.invalidate();
  const Layout& layout = arena_.layout();
  for (const auto& [offset, bytes] : ranges_to_copy(layout, version_, private_bytes_)) {
    if (offset == 0) continue;
    const bool is_private = offset >= layout.private_offset(0);
    std::byte* to = is_private ? arena_.private_bytes(version_).data()
                               : std::as_writable_bytes(arena_.parameters()).data();
    std::memcpy(to, source->at(offset), bytes);
  }
  position_ = there.records[version_ % 2].position;
  const std::uint64_t sum = digest_of(streams_of(*source, layout), layout.region_floats());
  if (!stands()) return moved(path, version_);
  if (sum != arena_.digest()) {
    return Error{Blame::kWorld,
                 cat("The copy of ", path, " in ", arena_.path(),
                     " differs from it: memory that does not keep what is written?")};
  }
  state_is_here_ = true;
  return {};
}

Status Arrival::copy_held(const PrivateCopy& held) {
  if (!held.has(version_) || held.bytes() != own_bytes()) {
    return Error{Blame::kPeer, cat(held.path(), " does not hold the ", own_bytes(),
                                   " private bytes of version ", version_, ".")};
  }
  arena_.invalidate();
  const auto to = arena_.private_bytes(version_).subspan(private_bytes_);
  const auto from = held.place(version_);
  for (const auto& [offset, bytes] : held.used(version_)) {
    if (bytes > 0) std::memcpy(to.data() + offset, from.data() + offset, bytes);
  }
  held_is_here_ = true;
  return {};
}

// ---- Of another host ----------------------------------------------------------------------------

Result<std::span<std::byte>> Arrival::begin_with(const Range& beginning, bool& is_here) {
  is_here = false;
  expected_.clear();
  if (beginning.offset != 0 || beginning.bytes > kLongestBeginning) {
    return Error{Blame::kPeer, "what comes of a state does not begin with its file's beginning"};
  }
  beginning_.assign(beginning.bytes, std::byte{});
  return std::span(beginning_);
}

// Its beginning has come.
Status Arrival::see_state(const Coming& coming) {
  const auto header = header_in(beginning_, coming.file_bytes, coming.from);
  if (!header) return header.error();
  auto fits = see_that_it_fits(arena_, header->fixed, coming.from, text_in(beginning_));
  if (!fits) return fits;
  const bool stands = header->version == version_ && header->updating != version_ + 1;
  if (version_ == kNoVersion || !stands) return moved(coming.from, version_);
  expected_ = ranges_to_copy(arena_.layout(), version_, private_bytes_);
  if (coming.ranges != expected_) {
    return Error{Blame::kPeer, cat("other parts come of ", coming.from, " than version ", version_,
                                   " has; start every rank with the same program")};
  }
  position_ = header->records[version_ % 2].position;
  arena_.invalidate();
  return {};
}

Result<std::span<std::byte>> Arrival::place(const Coming& coming, std::size_t range) {
  if (range == 0) return begin_with(coming.ranges.at(0), state_is_here_);
  if (range == 1) {
    if (auto seen = see_state(coming); !seen) return seen.error();
  }
  const auto& [offset, bytes] = expected_.at(range);
  const Layout& layout = arena_.layout();
  if (offset >= layout.private_offset(0)) return arena_.private_bytes(version_).first(bytes);
  return std::span(reinterpret_cast<std::byte*>(arena_.parameters().data()), bytes);
}

Status Arrival::came(const Coming& coming) {
  auto seen = see_state(coming);  // Once more: now it is known that it came as it was sent.
  state_is_here_ = seen.has_value();
  return seen;
}

Status Arrival::see_held(const Coming& coming, Rank ward) {
  const auto held = PrivateCopy::read(beginning_, coming.file_bytes, arena_.run_id(), coming.from);
  if (!held) return held.error();
  if (held->ward != ward) {
    return Error{Blame::kPeer, cat(coming.from, " is of rank ", held->ward)};
  }
  if (!held->has(version_) || held->bytes != own_bytes()) {
    return Error{Blame::kPeer, cat(coming.from, " does not hold the ", own_bytes(),
                                   " private bytes of version ", version_)};
  }
  used_.clear();
  for (const Range& part : held->used[version_ % 2]) {
    if (part.bytes > 0) used_.push_back(part);
  }
  expected_ = held->ranges_to_copy(version_);
  if (coming.ranges != expected_) {
    return Error{Blame::kPeer,
                 cat("other parts come of ", coming.from, " than version ", version_, " has")};
  }
  arena_.invalidate();
  return {};
}

Result<std::span<std::byte>> Arrival::place_held(const Coming& coming, std::size_t range,
                                                 Rank ward) {
  if (range == 0) return begin_with(coming.ranges.at(0), held_is_here_);
  if (range == 1) {
    if (auto seen = see_held(coming, ward); !seen) return seen.error();
  }
  const auto& [offset, bytes] = used_.at(range - 1);
  return arena_.private_bytes(version_).subspan(private_bytes_ + offset, bytes);
}

Status Arrival::came_held(const Coming& coming, Rank ward) {
  auto seen = see_held(coming, ward);
  held_is_here_ = seen.has_value();
  return seen;
}

Status Arrival::end() {
  if (!state_is_here_ || (has_held_ && !held_is_here_)) {
    return Error{Blame::kWorld,
                 cat("not all of version ", version_, " has come to ", arena_.path())};
  }
  arena_.begin(version_, position_);
  return {};
}

Status Arena::copy_from(const std::string& path, Version expected, std::uint64_t private_bytes,
                        const PrivateCopy* held) {
  Arrival arrival(*this, expected, private_bytes, held != nullptr);
  if (auto copied = arrival.copy(path); !copied) return copied;
  if (held != nullptr) {
    if (auto copied = arrival.copy_held(*held); !copied) return copied;
  }
  return arrival.end();
}

}  // namespace holdfast::arena
