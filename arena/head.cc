#include "arena/head.h"

#include <cstring>

#include "base/digest.h"
#include "base/text.h"

namespace holdfast::arena {

std::uint64_t check_of(const Fixed& fixed) {
  return digest(std::as_bytes(std::span(&fixed, 1)).first(offsetof(Fixed, check)));
}

Error damaged(const std::string& path, const char* what) {
  return {Blame::kWorld, cat("The arena ", path, " ", what,
                             "; remove it, and its rank gets its state from another rank or from a "
                             "checkpoint.")};
}

Result<Head> head_in(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                     const std::string& path) {
  Head head{};
  if (bytes.size() < sizeof head.header) return damaged(path, "is truncated");
  std::memcpy(&head.header, bytes.data(), sizeof head.header);
  const Fixed& fixed = head.header.fixed;
  if (fixed.magic != kMagic || fixed.check != check_of(fixed)) return damaged(path, "is corrupt");
  if (fixed.format != kFormat) {
    return Error{Blame::kUser, cat("The arena ", path, " has format ", fixed.format,
                                   ", this program knows ", kFormat, "; remove it.")};
  }
  if (file_bytes != fixed.file_bytes) return damaged(path, "is truncated");
  std::string text;
  if (kLayoutOffset <= bytes.size() && fixed.layout_bytes <= bytes.size() - kLayoutOffset) {
    text.assign(reinterpret_cast<const char*>(bytes.data()) + kLayoutOffset, fixed.layout_bytes);
  }
  const bool read = digest(std::as_bytes(std::span(text))) == fixed.fingerprint &&
                    Layout::from_text(text, head.layout);
  if (!read) return damaged(path, "has a corrupt layout");
  if (head.layout.private_bytes > file_bytes || head.layout.file_bytes() != file_bytes) {
    return damaged(path, "has another size than its layout");
  }
  return head;
}

std::vector<Range> used_of(const Header& header, const Layout& layout, Version v) {
  const auto parts = header.records[v % 2].used.all();
  if (parts.empty()) return {{0, layout.private_bytes}};
  return {parts.begin(), parts.end()};
}

Status check_words(const Header& header, const Layout& layout, const std::string& path) {
  const Version version = header.version;
  const bool staged_fits = header.staged == version || header.staged == version + 1;
  const bool threads_fit = header.threads >= 1 && header.threads <= kSlots;
  const auto parts_fit = [&](Version v) {
    return header.records[v % 2].used.fit(layout.private_bytes);
  };
  if (staged_fits && (threads_fit || header.updating != version + 1) && parts_fit(version) &&
      parts_fit(header.staged)) {
    return {};
  }
  return damaged(path, "has a corrupt header");
}

Result<ArenaFile> file_at(const std::string& path, os::Access access) {
  auto found = os::find_file(path, access);
  if (!found) return found.error();
  if (!found->file) return ArenaFile{};
  if (found->bytes < sizeof(Header)) return damaged(path, "is truncated");
  auto mapping = os::map_file(*found, access, path);
  if (!mapping) return mapping.error();
  auto head = head_in(mapping->bytes(), found->bytes, path);
  if (!head) return head.error();
  return ArenaFile{*std::move(found), *std::move(mapping), *std::move(head)};
}

Streams streams_of(const os::Mapping& mapping, const Layout& layout) {
  const std::size_t moments = moment_count(layout.optimizer);
  return {.w = mapping.as<float>(layout.parameters_offset()),
          .m = moments > 0 ? mapping.as<float>(layout.moments_offset(0)) : nullptr,
          .v = moments > 1 ? mapping.as<float>(layout.moments_offset(1)) : nullptr,
          .g = mapping.as<float>(layout.gradients_offset())};
}

std::uint64_t digest_of(const Streams& streams, std::uint64_t floats) {
  std::uint64_t sum = 0;
  for (const float* region : {streams.w, streams.m, streams.v}) {
    if (region != nullptr) sum = digest(std::as_bytes(std::span(region, floats)), sum);
  }
  return sum;
}

}  // namespace holdfast::arena
