// Small files in shared memory: made whole before they get their name, and mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "os/fd.h"
#include "os/mapping.h"

namespace holdfast::os {

// How many bytes the file system of `folder` holds in all, and how many are free. One without a
// limit holds as much as there is memory. Zeros: there is no such folder.
struct Room {
  std::uint64_t all = 0;
  std::uint64_t free = 0;
};
[[nodiscard]] Room room_in(const std::string& folder);
// How to give /dev/shm more room, in a clause.
inline constexpr std::string_view kMoreRoom =
    "docker run --shm-size=8g; in Kubernetes an emptyDir with `medium: Memory` at /dev/shm; else "
    "mount -o remount,size=8g /dev/shm";
// The error where a folder has no room for `bytes` more bytes: what is there, and how to give a
// job's memory more. `whose` says in a clause who needs them.
[[nodiscard]] Error no_room(const std::string& folder, std::string_view whose, std::uint64_t bytes);

// take_memory() (os/mapping.h) for the file at `path`. Error (kWorld): no_room(), or the system's.
[[nodiscard]] Status take_or_say(const Fd& file, std::uint64_t offset, std::uint64_t bytes,
                                 const std::string& path, std::string_view whose);

// An existing file and its size, as open_own_file() (os/files.h) finds it. The descriptor is empty
// if there is none.
struct Found {
  Fd file;
  std::uint64_t bytes = 0;
};
[[nodiscard]] Result<Found> find_file(const std::string& path, Access access);
// Maps the whole file.
[[nodiscard]] Result<Mapping> map_file(const Found& found, Access access, const std::string& path);

// Makes a file of zeros at path + ".new". The memory of its first `taken` bytes is taken, in huge
// pages if the kernel can; the rest is a hole. Makes missing folders. give_name() then moves the
// file to `path`, in place of what was there.
[[nodiscard]] Result<Mapping> make_file(const std::string& path, std::uint64_t bytes,
                                        std::uint64_t taken);
[[nodiscard]] inline Result<Mapping> make_file(const std::string& path, std::uint64_t bytes) {
  return make_file(path, bytes, bytes);
}
// Takes the memory of a range of such a file, in which there may be holes. A write into a hole for
// which there is no room would end the process (SIGBUS).
[[nodiscard]] Status fill_holes(const std::string& path, const Mapping& mapping, std::uint64_t at,
                                std::uint64_t bytes);
// Makes a range of whole pages a hole: it then reads as zeros.
[[nodiscard]] Status make_hole(const std::string& path, std::uint64_t at, std::uint64_t bytes);
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
