#include "runtime/jobs/solo_folder.h"

#include <unistd.h>

#include <cstdio>
#include <string_view>
#include <utility>

#include "os/files.h"
#include "os/host.h"

namespace holdfast::runtime {
namespace {

constexpr std::string_view kPrefix = "solo-";
constexpr const char* kLock = "in-use";

void remove_dead(const os::Folder& mine) {
  for (const auto& name : mine.names()) {
    if (!name.starts_with(kPrefix)) continue;
    const auto folder = mine.sub(name);
    if (!folder || !*folder) continue;
    // If it can not be removed now, `holdfast clean` will name it.
    if (const os::Fd lock = folder->lock(kLock)) (void)mine.remove(name);
  }
}

}  // namespace

bool is_solo_folder_in_use(const os::Folder& folder) {
  return folder.is_locked(kLock);
}

Result<std::string> SoloFolder::make(const std::string& name) {
  auto made = os::runtime_directory(name);
  if (!made) return made.error();
  auto mine = os::Folder::open(os::folder_of(*made));
  if (!mine) return mine.error();
  mine_ = *std::move(mine);
  remove_dead(mine_);
  const auto folder = mine_.sub(name);
  if (!folder) return folder.error();
  // If there can be no lock, only `holdfast clean` removes the folder.
  if (auto lock = folder->write_locked(kLock, "")) lock_ = std::move(*lock);
  name_ = name;
  owner_ = ::getpid();
  return made;
}

void SoloFolder::remove() {
  if (name_.empty() || owner_ != ::getpid()) return;
  if (const auto removed = mine_.remove(std::exchange(name_, "")); !removed) {
    std::fprintf(stderr, "holdfast: %s\n", removed.error().what.c_str());
  }
  lock_.reset();
  mine_ = {};
}

}  // namespace holdfast::runtime
