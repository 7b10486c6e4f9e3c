#include "collective/shared_mapping.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"

namespace holdfast::collective {
namespace {

using Key = std::tuple<dev_t, ino_t, std::uint64_t, std::uint64_t>;

// An inode that is mapped can not be used again for another file, so a live entry is never stale.
struct Known {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<const os::Mapping>> mappings;
};

Known& known() {
  static auto* const instance = new Known;  // Never destroyed: groups may outlive statics.
  return *instance;
}

}  // namespace

Result<os::Fd> open_shared(const std::string& path) {
  auto file = os::open_own_file(path, O_RDWR);
  if (!file || *file) return file;
  return os::system_error(cat("can not open ", path), ENOENT);
}

Result<SharedMapping> map_shared(const os::Fd& file, const std::string& name, std::uint64_t offset,
                                 std::uint64_t bytes) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    return Error{Blame::kWorld, cat("can not look at ", name, ": ", os::last_system_error())};
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
  os::Mapping mapped = os::Mapping::of(file, offset, bytes, os::Access::kWrite);
  if (!mapped) {
    return Error{Blame::kWorld, cat("can not map ", name, ": ", os::last_system_error())};
  }
  auto mapping = std::make_shared<const os::Mapping>(std::move(mapped));
  entry = mapping;
  return mapping;
}

}  // namespace holdfast::collective
