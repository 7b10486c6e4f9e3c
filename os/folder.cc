#include "os/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/text.h"
#include "os/errors.h"

namespace holdfast::os {
namespace {

constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

Error left_alone(const std::string& path, const std::string& why) {
  return {Blame::kUser, cat(path, ' ', why)};
}

Error of_another(const std::string& path, uid_t owner) {
  return left_alone(path, cat("belongs to user ", owner,
                              " and is left alone; only that user or root can remove it"));
}

// The error if the folder could not be opened. Only its words depend on this second look.
Error not_opened(int above, const std::string& name, const std::string& path, int error_number) {
  struct stat about {};
  if (::fstatat(above, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0) {
    if (about.st_uid != ::geteuid()) return of_another(path, about.st_uid);
    if (S_ISLNK(about.st_mode)) return left_alone(path, "is a link and is left alone; remove it");
    if (!S_ISDIR(about.st_mode))
      return left_alone(path, "is no folder and is left alone; remove it");
  }
  return system_error(cat("cannot open ", path), error_number);
}

Result<std::vector<std::string>> names_at(int folder, const std::string& path) {
  // Opened anew, because a reader moves the position, which copies of a descriptor share.
  const int fd = ::openat(folder, ".", kOpenFolder);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fd < 0 ? nullptr : ::fdopendir(fd), ::closedir);
  if (!entries) return system_error(cat("cannot read the folder ", path), errno);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Status remove_at(int above, const std::string& name, const std::string& path);

Status clear_at(int folder, const std::string& path) {
  const auto names = names_at(folder, path);
  if (!names) return names.error();
  for (const auto& name : *names) {
    if (auto removed = remove_at(folder, name, cat(path, '/', name)); !removed) return removed;
  }
  return {};
}

Status remove_at(int above, const std::string& name, const std::string& path) {
  if (::unlinkat(above, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  const auto failed_here = [&] { return system_error(cat("cannot remove ", path), errno); };
  if (errno != EISDIR) return failed_here();
  const Fd folder(::openat(above, name.c_str(), kOpenFolder));
  struct stat about {};
  struct stat about_above {};
  if (!folder || ::fstat(folder.get(), &about) != 0 || ::fstat(above, &about_above) != 0) {
    return failed_here();
  }
  if (about.st_uid != ::geteuid()) return of_another(path, about.st_uid);
  if (about.st_dev != about_above.st_dev) {
    return left_alone(path, "is another file system and is left alone; unmount it");
  }
  if (auto cleared = clear_at(folder.get(), path); !cleared) return cleared;
  if (::unlinkat(above, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  return failed_here();
}

}  // namespace

Result<Folder> Folder::open_at(int above, const std::string& name, const std::string& path,
                               mode_t refused) {
  Fd fd(::openat(above, name.c_str(), kOpenFolder));
  if (!fd && errno == ENOENT) return Folder();
  struct stat about {};
  if (!fd || ::fstat(fd.get(), &about) != 0) return not_opened(above, name, path, errno);
  if (about.st_uid != ::geteuid()) return of_another(path, about.st_uid);
  if ((about.st_mode & refused) != 0) {
    return left_alone(path,
                      "is open to other users and is left alone; remove it, or give it mode 0700");
  }
  return Folder(std::move(fd), path);
}

Result<Folder> Folder::make_at(int above, const std::string& name, const std::string& path,
                               mode_t refused) {
  if (::mkdirat(above, name.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_error(cat("cannot make the folder ", path), errno);
  }
  auto opened = open_at(above, name, path, refused);
  if (opened && !*opened) return system_error(cat("cannot open ", path), ENOENT);
  return opened;
}

Result<Folder> Folder::open(const std::string& path, mode_t refused) {
  return open_at(AT_FDCWD, path, path, refused);
}

Result<Folder> Folder::make(const std::string& path, mode_t refused) {
  return make_at(AT_FDCWD, path, path, refused);
}

Status Folder::sync() const {
  return ::fsync(get()) == 0 ? Status{} : system_error(cat("cannot sync ", path_), errno);
}

Result<Folder> Folder::sub(const std::string& name) const {
  return open_at(get(), name, cat(path_, '/', name));
}

Result<Folder> Folder::make_sub(const std::string& name) const {
  return make_at(get(), name, cat(path_, '/', name));
}

std::vector<std::string> Folder::names() const {
  auto names = names_at(get(), path_);
  return names ? *std::move(names) : std::vector<std::string>();
}

Result<std::string> Folder::read(const std::string& name) const {
  auto text = read_if_there(name);
  if (!text) return text.error();
  if (!*text) return system_error(cat("cannot open ", file(name).path), ENOENT);
  return **std::move(text);
}

Result<std::optional<std::string>> Folder::read_if_there(const std::string& name) const {
  if (!fd_) return std::optional<std::string>();
  const FileName found = file(name);
  const auto opened = open_own_file(found, O_RDONLY);
  if (!opened) return opened.error();
  if (!*opened) return std::optional<std::string>();
  auto text = read_rest(*opened, found.path);
  if (!text) return text.error();
  return std::optional(*std::move(text));
}

Result<Fd> Folder::write_locked(const std::string& name, std::string_view bytes) const {
  return write_locked_file(file(name), bytes);
}

Status Folder::write(const std::string& name, std::string_view bytes) const {
  const auto file = write_locked(name, bytes);
  return file ? Status() : file.error();
}

Fd Folder::lock(const std::string& name) const {
  auto opened = open_own_file(file(name), O_RDWR);
  const bool held = opened && *opened && ::flock(opened->get(), LOCK_EX | LOCK_NB) == 0;
  return held ? *std::move(opened) : Fd();
}

bool Folder::is_locked(const std::string& name) const {
  const auto opened = open_own_file(file(name), O_RDONLY);
  // A shared lock: two processes that look at once do not take each other for the holder.
  return opened && *opened && ::flock(opened->get(), LOCK_SH | LOCK_NB) != 0 &&
         errno == EWOULDBLOCK;
}

Fd Folder::wait_for_lock() const {
  // Opened anew, because copies of a descriptor share the lock.
  Fd folder(::openat(get(), ".", kOpenFolder));
  int result = -1;
  do {
    result = folder ? ::flock(folder.get(), LOCK_EX) : 0;
  } while (result != 0 && errno == EINTR);
  return result == 0 ? std::move(folder) : Fd();
}

Status Folder::remove(const std::string& name) const {
  return remove_at(get(), name, cat(path_, '/', name));
}

Status Folder::clear() const {
  return clear_at(get(), path_);
}

}  // namespace holdfast::os
