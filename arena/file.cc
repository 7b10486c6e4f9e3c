// Small files in shared memory: made whole before they get their name, and mapped.
#include "arena/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/remedy.h"
#include "base/text.h"

namespace holdfast::arena {
namespace {

constexpr std::uint64_t kHugePage = 2U << 20U;
constexpr int kMadviseCollapse = 25;  // MADV_COLLAPSE; glibc 2.36 does not name it.

Error failed(const std::string& doing, const std::string& path) {
  return {Blame::kWorld,
          cat("Can not ", doing, " ", path, ": ", std::strerror(errno), remedy_of(errno), ".")};
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

Status make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string directory = path.substr(0, slash);
    if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      return failed("make the directory", directory);
    }
  }
  return {};
}

Error no_room(std::uint64_t bytes, const std::string& path) {
  return {Blame::kWorld, cat("No room in ", directory_of(path), ": ", path, " needs ", bytes,
                             " bytes; enlarge that file system or name another.")};
}

// Not the size alone: writing to memory that the file system can not give is SIGBUS.
Status take_memory(const Descriptor& file, std::uint64_t bytes, const std::string& path) {
  if (fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) == 0) return {};
  if (errno == EOPNOTSUPP) {
    errno = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
    if (errno == 0) return {};
  }
  if (errno == ENOSPC || errno == EDQUOT) return no_room(bytes, path);
  return failed("size", path);
}

// Before a whole file system is filled to learn the same.
Status check_room(const Descriptor& file, std::uint64_t bytes, const std::string& path) {
  struct statvfs system {};
  const bool limited = fstatvfs(file.get(), &system) == 0 && system.f_blocks > 0;
  if (limited && bytes / system.f_frsize >= system.f_bavail) return no_room(bytes, path);
  return {};
}

// The kernel makes a huge page of one small page and a hole in a third less time than of 512 small
// ones, so the memory is taken in this order. Huge pages are for speed: the kernel may say no. They
// belong to the file, a successor's mapping has them at once.
Result<Mapping> fill(const Descriptor& file, std::uint64_t bytes, const std::string& path) {
  if (Status room = check_room(file, bytes, path); !room) return room.error();
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return failed("size", path);
  Result<Mapping> mapping = Mapping::map(file, bytes, Mapping::Access::kWrite, path);
  if (!mapping) return mapping;
  for (std::uint64_t at = 0; at + kHugePage <= bytes; at += kHugePage) {
    if (pwrite(file.get(), "", 1, static_cast<off_t>(at)) != 1) break;
  }
  if (bytes >= kHugePage) madvise(mapping->at(0), bytes, kMadviseCollapse);
  if (Status taken = take_memory(file, bytes, path); !taken) return taken.error();
  return mapping;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Result<Mapping> Mapping::map(const Descriptor& file, std::uint64_t bytes, Access access,
                             const std::string& path) {
  const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* room = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return failed("reserve addresses for", path);
  auto* const begin = static_cast<std::byte*>(room);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::uint64_t before = (kHugePage - address % kHugePage) % kHugePage;
  std::byte* const base = begin + before;
  if (mmap(base, bytes, protection, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED) {
    Error error = failed("map", path);
    munmap(room, bytes + kHugePage);
    return error;
  }
  constexpr std::uint64_t kPage = 4096;
  const std::uint64_t mapped = (bytes + kPage - 1) / kPage * kPage;
  if (before != 0) munmap(begin, before);
  if (before + mapped < bytes + kHugePage) {
    munmap(base + mapped, bytes + kHugePage - before - mapped);
  }
  return Mapping(base, bytes);
}

Result<Found> find_file(const std::string& path, Mapping::Access access) {
  const int mode = access == Mapping::Access::kWrite ? O_RDWR : O_RDONLY;
  Found found{Descriptor(open(path.c_str(), mode | O_CLOEXEC | O_NOFOLLOW)), 0};
  if (!found.file.valid()) {
    if (errno == ENOENT) return found;
    return failed("open", path);
  }
  struct stat status {};
  if (fstat(found.file.get(), &status) != 0) return failed("examine", path);
  const bool ours = status.st_uid == geteuid() || access == Mapping::Access::kRead;
  if (!S_ISREG(status.st_mode) || !ours) {
    return Error{Blame::kWorld, cat(path, " is not a plain file of this user; remove it.")};
  }
  found.bytes = static_cast<std::uint64_t>(status.st_size);
  return found;
}

Result<Mapping> make_file(const std::string& path, std::uint64_t bytes) {
  if (Status made = make_directories(path); !made) return made.error();
  const std::string unnamed = path + ".new";
  unlink(unnamed.c_str());
  const Descriptor file(
      open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return failed("create", unnamed);
  Result<Mapping> filled = fill(file, bytes, path);
  if (!filled) unlink(unnamed.c_str());
  return filled;
}

Status give_name(const std::string& path) {
  if (rename((path + ".new").c_str(), path.c_str()) != 0) return failed("name", path);
  return {};
}

std::size_t read_at(const Descriptor& file, std::uint64_t offset, std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t n = pread(file.get(), into.data() + done, into.size() - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

}  // namespace holdfast::arena
