#include "collective/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>
#include <tuple>

#include "base/text.h"

namespace holdfast::collective {
namespace {

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

}  // namespace

File::~File() {
  if (fd_ >= 0) ::close(fd_);
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
  const std::lock_guard lock(known().mutex);
  std::erase_if(known().mappings, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = known().mappings[Key{status.st_dev, status.st_ino, offset, bytes}];
  if (auto mapping = entry.lock()) return mapping;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t before = offset % page;
  const std::size_t length = bytes + before;
  void* base = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(),
                      static_cast<off_t>(offset - before));
  if (base == MAP_FAILED) {
    return Error{Blame::kWorld, cat("can not map ", name, ": ", last_system_error())};
  }
  const std::span<std::byte> range(static_cast<std::byte*>(base) + before, bytes);
  std::shared_ptr<Mapping> mapping(new Mapping(base, length, range));
  entry = mapping;
  return mapping;
}

Mapping::~Mapping() {
  ::munmap(base_, length_);
}

}  // namespace holdfast::collective
