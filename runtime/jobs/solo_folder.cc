#include "runtime/jobs/solo_folder.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/text.h"
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

}  // namespace

bool is_solo_folder_in_use(const std::string& path) {
  return os::is_locked(path + kLock);
}

Result<std::string> SoloFolder::make(const std::string& name) {
  auto made = os::runtime_directory(name);
  if (!made) return made.error();
  remove_dead(fs::path(*made).parent_path());
  // If there can be no lock, only `holdfast clean` removes the folder.
  if (auto lock = os::write_locked_file(*made + kLock, "")) lock_ = std::move(*lock);
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
