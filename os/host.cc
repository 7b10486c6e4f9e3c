#include "os/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/process.h"

namespace holdfast::os {
namespace {

// Makes a folder that no other user can reach, or checks that an existing one is so. Everybody can
// write to the places where these folders lie.
Status make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return system_error(cat("cannot make the folder ", path), errno);
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0) return system_error(cat("cannot look at ", path), errno);
  if (S_ISDIR(about.st_mode) && about.st_uid == ::geteuid() && (about.st_mode & 077U) == 0)
    return {};
  return Error{Blame::kUser,
               cat(path, " is not a folder of this user alone (mode 0700); remove it")};
}

std::string memory_folder() {
  return ::access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

}  // namespace

std::string runtime_path(const std::string& job) {
  return cat(memory_folder(), "/holdfast-", ::geteuid(), '/', job);
}

Result<std::string> runtime_directory(const std::string& job) {
  if (!is_plain_name(job)) {
    return Error{Blame::kUser, cat("'", job,
                                   "' can not be the name of a job; use letters, digits, '.', '_' "
                                   "and '-', at most 100, and no '.' first")};
  }
  constexpr int kTries = 100;
  const std::string folder = runtime_path(job);
  const std::string mine = folder_of(folder);
  for (int tries = 1;; ++tries) {
    auto made = make_private_folder(mine);
    if (made) made = make_private_folder(folder);
    if (made) return folder;
    // The user's last other job may end now and remove the folder of all jobs.
    if (tries == kTries) return made.error();
  }
}

std::string shared_memory_name() {
  struct stat folder {};
  ::stat(memory_folder().c_str(), &folder);
  const auto boot = read_file("/proc/sys/kernel/random/boot_id");
  return cat(boot ? boot->substr(0, boot->find('\n')) : host_name(), '-', folder.st_dev, '-',
             pid_namespace().value_or(0));
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

}  // namespace holdfast::os
