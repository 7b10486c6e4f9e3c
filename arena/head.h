// What the beginning of an arena's file says, and where its regions lie. Of this room alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arena/format.h"
#include "arena/kernels.h"
#include "arena/layout.h"
#include "base/result.h"
#include "os/mapping.h"
#include "os/shared_file.h"

namespace holdfast::arena {

[[nodiscard]] Error damaged(const std::string& path, const char* what);
[[nodiscard]] std::uint64_t check_of(const Fixed& fixed);

// Errors: what changes in the header can not be so. Requires: it has a version.
[[nodiscard]] Status check_words(const Header& header, const Layout& layout,
                                 const std::string& path);
// Which private bytes of a version are in use. Requires: the words were checked, and the version is
// committed or staged.
[[nodiscard]] std::vector<Range> used_of(const Header& header, const Layout& layout, Version v);

struct Head {
  Header header;
  Layout layout;

  [[nodiscard]] bool has_version_of(std::uint64_t run_id) const {
    return header.fixed.run_id == run_id && header.version != kNoVersion;
  }
};
// Of a file of so many bytes, the first of which these are.
[[nodiscard]] Result<Head> head_in(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                   const std::string& path);

// The file at `path`; its descriptor is empty if there is none.
struct ArenaFile {
  os::Found found;
  os::Mapping mapping;
  Head head;
};
[[nodiscard]] Result<ArenaFile> file_at(const std::string& path, os::Access access);

[[nodiscard]] Streams streams_of(const os::Mapping& mapping, const Layout& layout);
// Of parameters and moments.
[[nodiscard]] std::uint64_t digest_of(const Streams& streams, std::uint64_t floats);

}  // namespace holdfast::arena
