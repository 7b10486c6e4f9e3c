#include "os/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

namespace holdfast::os {
namespace {

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// Addresses for that many bytes, at the same remainder by 2 MiB as `offset`. Null: there is no
// room.
std::byte* reserve(std::uint64_t bytes, std::uint64_t offset) {
  const std::uint64_t used = whole_pages(bytes);
  void* room = ::mmap(nullptr, used + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(room);
  const std::uint64_t skip = (offset - reinterpret_cast<std::uintptr_t>(room)) % kHugePage;
  if (skip != 0) ::munmap(start, skip);
  ::munmap(start + skip + used, kHugePage - skip);
  return start + skip;
}

}  // namespace

Mapping Mapping::of(const Fd& file, std::uint64_t offset, std::uint64_t bytes, Access access) {
  const std::uint64_t before = offset % kPage;  // A mapping begins with a page.
  const std::uint64_t length = before + bytes;
  std::byte* const room = reserve(length, offset - before);
  if (room == nullptr) return {};
  const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  if (::mmap(room, length, protection, MAP_SHARED | MAP_FIXED, file.get(),
             static_cast<off_t>(offset - before)) == MAP_FAILED) {
    const int error_number = errno;
    ::munmap(room, length);
    errno = error_number;
    return {};
  }
  return Mapping({room + before, bytes});
}

Mapping::~Mapping() {
  if (bytes_.data() == nullptr) return;
  const std::uint64_t before = reinterpret_cast<std::uintptr_t>(bytes_.data()) % kPage;
  ::munmap(bytes_.data() - before, before + bytes_.size());
}

// In steps, because before Linux 6.10 a signal undoes the step that it interrupts.
int take_memory(const Fd& file, std::uint64_t offset, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t step = std::min(kHugePage, bytes - at);
    const int error_number =
        ::posix_fallocate(file.get(), static_cast<off_t>(offset + at), static_cast<off_t>(step));
    if (error_number == EINTR) continue;
    if (error_number != 0) return error_number == EDQUOT ? ENOSPC : error_number;
    at += step;
  }
  return 0;
}

bool drop_memory(const Fd& file, std::uint64_t offset, std::uint64_t bytes) {
  return ::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
}

}  // namespace holdfast::os
