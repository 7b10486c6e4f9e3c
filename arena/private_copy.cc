#include "arena/private_copy.h"

#include <cstddef>
#include <utility>

#include "arena/format.h"
#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"

namespace holdfast::arena {
namespace {

constexpr std::uint64_t kPrivateMagic = 0x7669727061466421;  // "!dFapriv" in memory
constexpr std::uint64_t kPrivateFormat = 1;

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

const char* problem(const os::Mapping& mapping, std::uint64_t size, std::uint64_t run_id) {
  const PrivateHeader& h = header(mapping);
  if (h.fixed.magic != kPrivateMagic || h.fixed.check != check_of(h.fixed)) return "is corrupt";
  if (h.fixed.format != kPrivateFormat) return "has a format that this program does not know";
  if (h.fixed.run_id != run_id) return "is of another run";
  const std::uint64_t room = (size - kPageBytes) / 2;
  if (h.fixed.bytes > room || place_bytes(h.fixed.bytes) != room) return "is truncated";
  const bool fits = h.staged == h.version || h.staged == h.version + 1;
  return h.version == kNoVersion || fits ? nullptr : "has a corrupt header";
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
  const auto damaged = [&](const char* what) {
    return Error{Blame::kWorld, cat("The copy of private state ", path, " ", what, ".")};
  };
  if (found->bytes < kPageBytes) return damaged("is truncated");
  auto mapping = os::map_file(*found, access, path);
  if (!mapping) return mapping.error();
  if (const char* what = problem(*mapping, found->bytes, run_id)) return damaged(what);
  return PrivateCopy(path, *std::move(mapping));
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

std::uint64_t PrivateCopy::header_bytes() {
  return kPageBytes;
}
std::uint64_t PrivateCopy::offset(Version v) const {
  return kPageBytes + (v % 2) * place_bytes(bytes());
}
std::uint64_t PrivateCopy::file_bytes() const {
  return kPageBytes + 2 * place_bytes(bytes());
}
std::span<std::byte> PrivateCopy::place(Version v) const {
  return {mapping_.as<std::byte>(offset(v)), bytes()};
}

void PrivateCopy::expect(Version v) {
  PrivateHeader& h = header(mapping_);
  if (v == version() + 1) {
    publish(h.staged, h.version);
  } else {
    publish(h.version, kNoVersion);
  }
}

void PrivateCopy::take(Version v) {
  PrivateHeader& h = header(mapping_);
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
