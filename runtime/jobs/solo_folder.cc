#include "runtime/jobs/solo_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "io/files.h"

namespace holdfast::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "solo-";
constexpr const char* kLock = "/in-use";

void remove_dead(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.starts_with(kPrefix)) found.push_back(entry->path());
  }
  for (const auto& path : found) {
    // What can not be removed now, `holdfast clean` names.
    if (const io::Fd lock = io::lock_file(path + kLock)) (void)io::remove_tree(path, folder);
  }
}

// The lock file gets its name once the lock is held, so that nobody finds it free. Empty where no
// lock can be had: then only `holdfast clean` removes what is left.
io::Fd hold(const std::string& path) {
  const std::string file = path + kLock;
  const std::string unnamed = file + ".new";
  (void)io::Fd(::open(unnamed.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  io::Fd lock = io::lock_file(unnamed);
  return lock && ::rename(unnamed.c_str(), file.c_str()) == 0 ? std::move(lock) : io::Fd();
}

}  // namespace

bool is_solo_folder_in_use(const std::string& path) {
  return io::is_locked(path + kLock);
}

Result<std::string> SoloFolder::make(const std::string& name) {
  auto made = io::runtime_directory(name);
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
  if (const auto removed = io::remove_tree(path, fs::path(path).parent_path()); !removed) {
    std::fprintf(stderr, "holdfast: %s\n", removed.error().what.c_str());
  }
  lock_.reset();
}

}  // namespace holdfast::runtime
