#include "runtime/jobs/solo_folder.h"

#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "os/draft.h"
#include "os/files.h"
#include "os/host.h"

namespace holdfast::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "solo-";
constexpr const char* kLock = "/in-use";

void remove_dead(const std::string& folder) {
  for (const auto& name : os::names_in(folder)) {
    if (!name.starts_with(kPrefix)) continue;
    const std::string path = cat(folder, '/', name);
    // If it can not be removed now, `holdfast clean` will name it.
    if (const os::Fd lock = os::lock_file(path + kLock)) (void)os::remove_tree(path, folder);
  }
}

// The lock file gets its name when it is locked, so nobody finds it unlocked. Empty if there can be
// no lock: then only `holdfast clean` removes the folder.
os::Fd hold(const std::string& path) {
  os::Draft file(path + kLock, 0600);
  const bool held = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 && file.publish();
  return held ? file.take() : os::Fd();
}

}  // namespace

bool is_solo_folder_in_use(const std::string& path) {
  return os::is_locked(path + kLock);
}

Result<std::string> SoloFolder::make(const std::string& name) {
  auto made = os::runtime_directory(name);
  if (!made) return made.error();
  remove_dead(fs::path(*made).parent_path());
  lock_ = hold(*made);
  path_ = *made;
  owner_ = ::getpid();
  return made;
}

void SoloFolder::remove() {
  if (path_.empty() || owner_ != ::getpid()) return;
  const std::string path = std::exchange(path_, "");
  if (const auto removed = os::remove_tree(path, fs::path(path).parent_path()); !removed) {
    std::fprintf(stderr, "holdfast: %s\n", removed.error().what.c_str());
  }
  lock_.reset();
}

}  // namespace holdfast::runtime
