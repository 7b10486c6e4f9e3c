#include "arena/private_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "arena/format.h"
#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"

namespace holdfast::arena {
namespace {

constexpr std::uint64_t kPrivateMagic = 0x7669727061466421;  // "!dFapriv" in memory
constexpr std::uint64_t kPrivateFormat = 2;

// Which bytes of a place are in use.
struct Parts {
  std::uint64_t count = 0;
  Range ranges[PrivateCopy::kMostParts];
};

// The first page of the file; two places follow, each on pages of its own.
struct PrivateHeader {
  struct Fixed {
    std::uint64_t magic = kPrivateMagic;
    std::uint64_t format = kPrivateFormat;
    std::uint64_t run_id = 0;
    std::uint64_t ward = 0;
    std::uint64_t bytes = 0;
    std::uint64_t check = 0;  // Digest of all above.
  } fixed;
  std::uint64_t version = kNoVersion;  // kNoVersion: the next means nothing.
  std::uint64_t staged = kNoVersion;
  Parts parts[2];  // Of version v in [v % 2].
};
static_assert(sizeof(PrivateHeader) <= kPageBytes);

std::uint64_t check_of(const PrivateHeader::Fixed& fixed) {
  return digest(std::as_bytes(std::span(&fixed, 1)).first(offsetof(PrivateHeader::Fixed, check)));
}

std::uint64_t place_bytes(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

PrivateHeader& header(const os::Mapping& mapping) {
  return *mapping.as<PrivateHeader>(0);
}

bool fit(const Parts& parts, std::uint64_t bytes) {
  if (parts.count > PrivateCopy::kMostParts) return false;
  std::uint64_t end = 0;
  for (const auto& [offset, size] : std::span(parts.ranges).first(parts.count)) {
    if (offset < end || offset > bytes || size > bytes - offset) return false;
    end = offset + size;
  }
  return true;
}

const char* problem(const PrivateHeader& h, std::uint64_t size, std::uint64_t run_id) {
  if (h.fixed.magic != kPrivateMagic || h.fixed.check != check_of(h.fixed)) return "is corrupt";
  if (h.fixed.format != kPrivateFormat) return "has a format that this program does not know";
  if (h.fixed.run_id != run_id) return "is of another run";
  const std::uint64_t room = (size - kPageBytes) / 2;
  if (h.fixed.bytes > room || place_bytes(h.fixed.bytes) != room) return "is truncated";
  if (h.version == kNoVersion) return nullptr;
  const bool versions_fit = h.staged == h.version || h.staged == h.version + 1;
  const bool parts_fit =
      fit(h.parts[h.version % 2], h.fixed.bytes) && fit(h.parts[h.staged % 2], h.fixed.bytes);
  return versions_fit && parts_fit ? nullptr : "has a corrupt header";
}

Error damaged_copy(const std::string& path, const char* what) {
  return {Blame::kWorld, cat("The copy of private state ", path, " ", what, ".")};
}

std::vector<Range> in_use(const PrivateHeader& h, Version v) {
  const Parts& parts = h.parts[v % 2];
  const auto ranges =
      std::span(parts.ranges).first(std::min(parts.count, std::uint64_t{PrivateCopy::kMostParts}));
  return {ranges.begin(), ranges.end()};
}

std::uint64_t offset_of(std::uint64_t bytes, Version v) {
  return kPageBytes + (v % 2) * place_bytes(bytes);
}

PrivateCopy::Facts facts_in(const PrivateHeader& h) {
  const Version version = load(h.version);
  return {.ward = static_cast<Rank>(h.fixed.ward),
          .bytes = h.fixed.bytes,
          .version = version,
          .staged = version == kNoVersion ? kNoVersion : load(h.staged),
          .used = {in_use(h, 0), in_use(h, 1)}};
}

}  // namespace

Result<PrivateCopy> PrivateCopy::make(const std::string& path, std::uint64_t run_id, Rank ward,
                                      std::uint64_t bytes) {
  auto mapping = os::make_file(path, kPageBytes + 2 * place_bytes(bytes));
  if (!mapping) return mapping.error();
  PrivateHeader& h = header(*mapping);
  h = PrivateHeader{};
  h.fixed.run_id = run_id;
  h.fixed.ward = static_cast<std::uint64_t>(ward);
  h.fixed.bytes = bytes;
  h.fixed.check = check_of(h.fixed);
  if (Status named = os::give_name(path); !named) return named.error();
  return PrivateCopy(path, *std::move(mapping));
}

Result<PrivateCopy> PrivateCopy::open(const std::string& path, std::uint64_t run_id,
                                      os::Access access) {
  const auto found = os::find_file(path, access);
  if (!found) return found.error();
  if (!found->file) return Error{Blame::kWorld, cat("There is no ", path, ".")};
  if (found->bytes < kPageBytes) return damaged_copy(path, "is truncated");
  auto mapping = os::map_file(*found, access, path);
  if (!mapping) return mapping.error();
  const char* what = problem(header(*mapping), found->bytes, run_id);
  if (what != nullptr) return damaged_copy(path, what);
  return PrivateCopy(path, *std::move(mapping));
}

Result<PrivateCopy::Facts> PrivateCopy::read(std::span<const std::byte> beginning,
                                             std::uint64_t file_bytes, std::uint64_t run_id,
                                             const std::string& name) {
  PrivateHeader h;
  if (beginning.size() != kPageBytes || file_bytes < kPageBytes) {
    return damaged_copy(name, "is truncated");
  }
  std::memcpy(&h, beginning.data(), sizeof h);
  const char* what = problem(h, file_bytes, run_id);
  if (what != nullptr) return damaged_copy(name, what);
  return facts_in(h);
}

PrivateCopy::Facts PrivateCopy::facts() const {
  return facts_in(header(mapping_));
}

std::vector<Range> PrivateCopy::Facts::ranges_to_copy(Version v) const {
  std::vector<Range> ranges{{0, kPageBytes}};
  for (const auto& [offset, size] : used[v % 2]) {
    if (size > 0) ranges.push_back({offset_of(bytes, v) + offset, size});
  }
  return ranges;
}

Rank PrivateCopy::ward() const {
  return static_cast<Rank>(header(mapping_).fixed.ward);
}
std::uint64_t PrivateCopy::bytes() const {
  return header(mapping_).fixed.bytes;
}
Version PrivateCopy::version() const {
  return load(header(mapping_).version);
}
Version PrivateCopy::staged() const {
  return version() == kNoVersion ? kNoVersion : load(header(mapping_).staged);
}

std::uint64_t PrivateCopy::file_bytes() const {
  return kPageBytes + 2 * place_bytes(bytes());
}
std::span<std::byte> PrivateCopy::place(Version v) const {
  return {mapping_.as<std::byte>(offset_of(bytes(), v)), bytes()};
}
std::vector<Range> PrivateCopy::used(Version v) const {
  return in_use(header(mapping_), v);
}

void PrivateCopy::expect(Version v) {
  PrivateHeader& h = header(mapping_);
  if (v == version() + 1) {
    publish(h.staged, h.version);
  } else {
    publish(h.version, kNoVersion);
  }
}

void PrivateCopy::take(Version v, std::span<const Range> used) {
  HF_ASSERT(used.size() <= kMostParts);
  PrivateHeader& h = header(mapping_);
  Parts& parts = h.parts[v % 2];
  parts = {};
  if (used.empty()) {
    parts = {.count = 1, .ranges = {{0, bytes()}}};
  } else {
    std::ranges::copy(used, parts.ranges);
    parts.count = used.size();
  }
  HF_ASSERT(fit(parts, bytes()));
  publish(h.staged, v);
  if (version() == kNoVersion || v != version() + 1) publish(h.version, v);
}

void PrivateCopy::settle(Version v) {
  PrivateHeader& h = header(mapping_);
  if (version() == kNoVersion) return;
  if (v == version()) publish(h.staged, v);
  if (v == staged()) publish(h.version, v);
}

}  // namespace holdfast::arena
