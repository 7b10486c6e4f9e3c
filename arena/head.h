// Reads the beginning of an arena's file and finds its regions. Only for the files of this folder.
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

// Checks those words of the header that change. Error: they can not be right. Requires: the header
// has a version.
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
// Reads the head of a file of `file_bytes` bytes, of which `bytes` are the first.
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
// The digest of parameters and moments.
[[nodiscard]] std::uint64_t digest_of(const Streams& streams, std::uint64_t floats);

}  // namespace holdfast::arena
