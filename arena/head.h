// What the beginning of an arena's file says, and where its regions lie. Of this room alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "arena/format.h"
#include "arena/kernels.h"
#include "arena/layout.h"
#include "base/result.h"
#include "os/mapping.h"

namespace holdfast::arena {

[[nodiscard]] Error damaged(const std::string& path, const char* what);
[[nodiscard]] std::uint64_t check_of(const Fixed& fixed);
// The header that the beginning of a file of so many bytes has. `path` names it in errors.
[[nodiscard]] Result<Header> header_in(std::span<const std::byte> beginning,
                                       std::uint64_t file_bytes, const std::string& path);
// How the file's layout differs, in a clause; empty if it does not. `read_text` gives so many bytes
// of the file from kLayoutOffset on; none: it has not so many.
[[nodiscard]] Result<std::string> layout_difference(
    const Fixed& fixed, const Layout& layout, const std::string& path,
    const std::function<std::string(std::uint64_t)>& read_text);

[[nodiscard]] Streams streams_of(const os::Mapping& mapping, const Layout& layout);
// Of parameters and moments.
[[nodiscard]] std::uint64_t digest_of(const Streams& streams, std::uint64_t floats);

}  // namespace holdfast::arena
