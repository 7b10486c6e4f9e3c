// Small files in shared memory: made whole before they get their name, and mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "os/fd.h"
#include "os/mapping.h"

namespace holdfast::os {

// An existing file and its size, as open_own_file() (os/files.h) finds it. The descriptor is empty
// if there is none.
struct Found {
  Fd file;
  std::uint64_t bytes = 0;
};
[[nodiscard]] Result<Found> find_file(const std::string& path, Access access);
// Maps the whole file.
[[nodiscard]] Result<Mapping> map_file(const Found& found, Access access, const std::string& path);

// Makes a file of zeros at path + ".new", with all its memory taken, in huge pages if the kernel
// can. Makes missing folders. give_name() then moves the file to `path`, in place of what was
// there.
[[nodiscard]] Result<Mapping> make_file(const std::string& path, std::uint64_t bytes);
[[nodiscard]] Status give_name(const std::string& path);

// make_file() without a name: the file goes with the process, unless give_draft_name() gives it the
// name path + ".new".
struct Unnamed {
  Fd file;
  Mapping mapping;
};
[[nodiscard]] Result<Unnamed> make_unnamed_file(const std::string& folder, std::uint64_t bytes);
[[nodiscard]] Status give_draft_name(const Unnamed& unnamed, const std::string& path);

}  // namespace holdfast::os
