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

Result<Header> header_in(std::span<const std::byte> beginning, std::uint64_t file_bytes,
                         const std::string& path) {
  Header header{};
  if (beginning.size() < sizeof header) return damaged(path, "is truncated");
  std::memcpy(&header, beginning.data(), sizeof header);
  const Fixed& fixed = header.fixed;
  if (fixed.magic != kMagic || fixed.check != check_of(fixed)) return damaged(path, "is corrupt");
  if (fixed.format != kFormat) {
    return Error{Blame::kUser, cat("The arena ", path, " has format ", fixed.format,
                                   ", this program knows ", kFormat, "; remove it.")};
  }
  if (file_bytes != fixed.file_bytes) return damaged(path, "is truncated");
  return header;
}

Result<std::string> layout_difference(const Fixed& fixed, const Layout& layout,
                                      const std::string& path,
                                      const std::function<std::string(std::uint64_t)>& read_text) {
  if (fixed.fingerprint == layout.fingerprint() && fixed.file_bytes == layout.file_bytes()) {
    return std::string{};
  }
  const std::string text = read_text(fixed.layout_bytes);
  Layout there;
  const bool read =
      digest(std::as_bytes(std::span(text))) == fixed.fingerprint && Layout::from_text(text, there);
  if (!read) return damaged(path, "has a corrupt layout");
  std::string different = difference(there, layout);
  if (different.empty()) return damaged(path, "has another size than its layout");
  return different;
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
