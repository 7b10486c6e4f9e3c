#include "collective/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>
#include <tuple>

#include "base/text.h"

namespace holdfast::collective {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

using Key = std::tuple<dev_t, ino_t, std::uint64_t, std::uint64_t>;

// An inode that is mapped can not be used again for another file, so a live entry is never stale.
struct Known {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<Mapping>> mappings;
};

Known& known() {
  static auto* const instance = new Known;  // Never destroyed: groups may outlive statics.
  return *instance;
}

// Addresses for a mapping, at the same remainder by 2 MiB as its offset in the file: so the huge
// pages that an arena has stay huge here, too. Null if there is no room.
std::byte* reserve(std::size_t length, std::uint64_t offset) {
  const std::size_t used = (length + kPage - 1) / kPage * kPage;
  void* room = ::mmap(nullptr, used + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(room);
  const std::uint64_t skip = (offset - reinterpret_cast<std::uintptr_t>(room)) % kHugePage;
  if (skip != 0) ::munmap(start, skip);
  ::munmap(start + skip + used, kHugePage - skip);
  return start + skip;
}

}  // namespace

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

// Step by step: before Linux 6.10 any signal undoes the step that it comes into.
int take_memory(const File& file, std::uint64_t offset, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t step = std::min(kHugePage, bytes - at);
    const int error =
        ::posix_fallocate(file.fd(), static_cast<off_t>(offset + at), static_cast<off_t>(step));
    if (error == EINTR) continue;
    if (error != 0) return error == EDQUOT ? ENOSPC : error;
    at += step;
  }
  return 0;
}

std::string last_system_error() {
  return std::generic_category().message(errno);
}

Result<std::shared_ptr<Mapping>> Mapping::of(const std::string& path, std::uint64_t offset,
                                             std::uint64_t bytes) {
  const File file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open()) {
    return Error{Blame::kWorld, cat("can not open ", path, ": ", last_system_error())};
  }
  return of(file, path, offset, bytes);
}

Result<std::shared_ptr<Mapping>> Mapping::of(const File& file, const std::string& name,
                                             std::uint64_t offset, std::uint64_t bytes) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) {
    return Error{Blame::kWorld, cat("can not look at ", name, ": ", last_system_error())};
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (offset > size || bytes > size - offset) {
    return Error{Blame::kPeer, cat(name, " has ", size, " bytes where ", bytes, " from byte ",
                                   offset, " on were promised; ranks must agree on the layout")};
  }
  const auto failed = [&name] {
    return Error{Blame::kWorld, cat("can not map ", name, ": ", last_system_error())};
  };
  const std::lock_guard lock(known().mutex);
  std::erase_if(known().mappings, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = known().mappings[Key{status.st_dev, status.st_ino, offset, bytes}];
  if (auto mapping = entry.lock()) return mapping;
  const std::uint64_t before = offset % kPage;
  const std::size_t length = bytes + before;
  std::byte* const room = reserve(length, offset - before);
  if (room == nullptr) return failed();
  void* base = ::mmap(room, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.fd(),
                      static_cast<off_t>(offset - before));
  if (base == MAP_FAILED) ::munmap(room, length);
  if (base == MAP_FAILED) return failed();
  const std::span<std::byte> range(static_cast<std::byte*>(base) + before, bytes);
  std::shared_ptr<Mapping> mapping(new Mapping(base, length, range));
  entry = mapping;
  return mapping;
}

Mapping::~Mapping() {
  ::munmap(base_, length_);
}

}  // namespace holdfast::collective
