// Small files in shared memory: made whole before they get their name, and mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "os/fd.h"
#include "os/mapping.h"

namespace holdfast::os {

// An existing file and its size. An empty descriptor: there is none. Refuses what is not a plain
// file of this user.
struct Found {
  Fd file;
  std::uint64_t bytes = 0;
};
[[nodiscard]] Result<Found> find_file(const std::string& path, Access access);
// The whole of it.
[[nodiscard]] Result<Mapping> map_file(const Found& found, Access access, const std::string& path);

// A new file of zeros with all its memory taken (in huge pages where the kernel can), still under
// path + ".new"; missing directories are made. give_name() moves it to `path`, in place of what was
// there.
[[nodiscard]] Result<Mapping> make_file(const std::string& path, std::uint64_t bytes);
[[nodiscard]] Status give_name(const std::string& path);

// Reads as much of `into` as the file has; returns the number of bytes.
[[nodiscard]] std::size_t read_at(const Fd& file, std::uint64_t offset, std::span<std::byte> into);

}  // namespace holdfast::os
