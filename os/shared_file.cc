#include "os/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"

namespace holdfast::os {
namespace {

constexpr int kMadviseCollapse = 25;  // MADV_COLLAPSE; glibc 2.36 does not name it.

// Rounded up: "4 KiB", "300 MiB".
std::string in_words(std::uint64_t bytes) {
  const bool is_little = bytes < kHugePage;
  const std::uint64_t unit = is_little ? 1 << 10 : 1 << 20;
  return cat(bytes / unit + (bytes % unit != 0 ? 1 : 0), is_little ? " KiB" : " MiB");
}

std::string name_in(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

Error failed(const std::string& doing, const std::string& path) {
  return system_error(cat("cannot ", doing, " ", path), errno);
}

// Fails early, rather than fill a whole file system only to find that it is too small.
Status check_room(const Fd& file, std::uint64_t bytes, const std::string& path) {
  struct statvfs system {};
  const bool limited = fstatvfs(file.get(), &system) == 0 && system.f_blocks > 0;
  const bool fits = !limited || bytes / system.f_frsize < system.f_bavail;
  return fits ? Status{} : Status{no_room(folder_of(path), name_in(path), bytes)};
}

// The kernel makes a huge page from one small page and a hole in a third less time than from 512
// small pages. So the memory is taken in this order. The kernel may refuse huge pages, which are
// only for speed. They belong to the file, so a successor's mapping has them at once.
Result<Mapping> fill(const Fd& file, std::uint64_t bytes, std::uint64_t taken,
                     const std::string& path) {
  if (Status room = check_room(file, taken, path); !room) return room.error();
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return failed("size", path);
  Mapping mapping = Mapping::of(file, 0, bytes, Access::kWrite);
  if (!mapping) return failed("map", path);
  for (std::uint64_t at = 0; at + kHugePage <= taken; at += kHugePage) {
    if (pwrite(file.get(), "", 1, static_cast<off_t>(at)) != 1) break;
  }
  if (taken >= kHugePage) madvise(mapping.at(0), taken / kHugePage * kHugePage, kMadviseCollapse);
  if (Status got = take_or_say(file, 0, taken, path, name_in(path)); !got) return got.error();
  return mapping;
}

}  // namespace

Room room_in(const std::string& folder) {
  struct statvfs system {};
  if (statvfs(folder.c_str(), &system) != 0) return {};
  if (system.f_blocks == 0) {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    return {static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page,
            static_cast<std::uint64_t>(::sysconf(_SC_AVPHYS_PAGES)) * page};
  }
  return {std::uint64_t{system.f_blocks} * system.f_frsize,
          std::uint64_t{system.f_bavail} * system.f_frsize};
}

Error no_room(const std::string& folder, std::string_view whose, std::uint64_t bytes) {
  const Room room = room_in(folder);
  const bool is_usual = folder.starts_with("/dev/shm");
  return {
      Blame::kWorld,
      cat("No room in ", folder, " for ", whose, ": ", in_words(bytes), " are needed, and ",
          in_words(room.free), " of ", in_words(room.all), " are free. ",
          is_usual ? cat("Each rank of a host needs about as much. Give /dev/shm more: ", kMoreRoom)
                   : "Enlarge that file system")};
}

Status take_or_say(const Fd& file, std::uint64_t offset, std::uint64_t bytes,
                   const std::string& path, std::string_view whose) {
  const int error_number = take_memory(file, offset, bytes);
  if (error_number == 0) return {};
  if (error_number == ENOSPC) return no_room(folder_of(path), whose, bytes);
  return system_error(cat("cannot take ", bytes, " bytes of ", path, " for ", whose), error_number);
}

Result<Mapping> map_file(const Found& found, Access access, const std::string& path) {
  Mapping mapping = Mapping::of(found.file, 0, found.bytes, access);
  if (!mapping) return failed("map", path);
  return mapping;
}

Result<Found> find_file(const std::string& path, Access access) {
  auto file = open_own_file(path, access == Access::kWrite ? O_RDWR : O_RDONLY);
  if (!file) return file.error();
  Found found{*std::move(file), 0};
  if (!found.file) return found;
  struct stat status {};
  if (fstat(found.file.get(), &status) != 0) return failed("examine", path);
  found.bytes = static_cast<std::uint64_t>(status.st_size);
  return found;
}

Result<Mapping> make_file(const std::string& path, std::uint64_t bytes, std::uint64_t taken) {
  if (Status made = make_directories(folder_of(path)); !made) return made.error();
  const std::string unnamed = path + ".new";
  unlink(unnamed.c_str());
  const Fd file(open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return failed("create", unnamed);
  Result<Mapping> filled = fill(file, bytes, taken, path);
  if (!filled) unlink(unnamed.c_str());
  return filled;
}

// A range of which all pages were written has no hole: then nothing is to be done.
Status fill_holes(const std::string& path, const Mapping& mapping, std::uint64_t at,
                  std::uint64_t bytes) {
  const auto found = find_file(path, Access::kWrite);
  if (!found) return found.error();
  if (!found->file) return Error{Blame::kWorld, cat("there is no ", path, " any more")};
  const off_t hole = lseek(found->file.get(), static_cast<off_t>(at), SEEK_HOLE);
  if (hole >= 0 && static_cast<std::uint64_t>(hole) >= at + bytes) return {};
  if (Status got = take_or_say(found->file, at, bytes, path, name_in(path)); !got) return got;
  const std::uint64_t from = (at + kHugePage - 1) / kHugePage * kHugePage;
  const std::uint64_t to = (at + bytes) / kHugePage * kHugePage;
  if (from < to) madvise(mapping.at(from), to - from, kMadviseCollapse);
  return {};
}

Status make_hole(const std::string& path, std::uint64_t at, std::uint64_t bytes) {
  const auto found = find_file(path, Access::kWrite);
  if (!found) return found.error();
  const bool done = found->file && drop_memory(found->file, at, bytes);
  return done ? Status{} : Status{failed("clear", path)};
}

Result<Unnamed> make_unnamed_file(const std::string& folder, std::uint64_t bytes) {
  Unnamed made;
  made.file.reset(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!made.file) return failed("create a file in", folder);
  Result<Mapping> filled = fill(made.file, bytes, bytes, cat(folder, "/(no name yet)"));
  if (!filled) return filled.error();
  made.mapping = *std::move(filled);
  return made;
}

Status give_draft_name(const Unnamed& unnamed, const std::string& path) {
  const std::string draft = path + ".new";
  unlink(draft.c_str());
  const std::string content = cat("/proc/self/fd/", unnamed.file.get());
  if (linkat(AT_FDCWD, content.c_str(), AT_FDCWD, draft.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return failed("name", draft);
  }
  return {};
}

Status give_name(const std::string& path) {
  if (rename((path + ".new").c_str(), path.c_str()) != 0) return failed("name", path);
  return {};
}

}  // namespace holdfast::os
