#include "os/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "os/draft.h"
#include "os/errors.h"

namespace holdfast::os {
namespace {

constexpr std::size_t kTailBytes = 65536;

}  // namespace

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return true;
}

bool read_at(int fd, std::uint64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    errno = 0;
    const ssize_t got = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

Status make_directories(const std::string& path, mode_t mode) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    struct stat about {};
    // Reports the error of mkdir(), because stat() would only say that there is no folder.
    const int error_number = ::mkdir(folder.c_str(), mode) == 0 ? 0 : errno;
    const bool there =
        error_number == 0 || (::stat(folder.c_str(), &about) == 0 && S_ISDIR(about.st_mode));
    if (!there) return system_error(cat("cannot make the folder ", folder), error_number);
    if (end == std::string::npos) return {};
  }
}

Result<Fd> open_own_file(const FileName& name, int flags) {
  // O_NONBLOCK: if a FIFO has this name, the call must not wait.
  constexpr int kAlways = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  Fd file(::openat(name.folder, name.in_folder().c_str(), flags | kAlways, 0600));
  if (!file && errno == ENOENT && (flags & O_CREAT) == 0) return file;
  struct stat about {};
  const bool known = file && ::fstat(file.get(), &about) == 0;
  if (!known && errno != ELOOP && errno != EISDIR && errno != ENXIO) {
    return system_error(cat("cannot open ", name.path), errno);
  }
  // No link at all: the file was replaced just now.
  if (known && S_ISREG(about.st_mode) && about.st_uid == ::geteuid() && about.st_nlink <= 1) {
    return file;
  }
  return Error{Blame::kWorld, cat(name.path, " is not a plain file of this user; remove it.")};
}

Result<std::string> read_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_error(cat("cannot open ", path), errno);
  return read_rest(file, path);
}

Result<std::string> read_rest(const Fd& file, const std::string& path) {
  std::string bytes;
  std::array<char, 16384> block{};
  while (true) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(cat("cannot read ", path), errno);
    if (got == 0) return bytes;
    bytes.append(block.data(), static_cast<std::size_t>(got));
  }
}

bool write_at(int fd, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    offset += static_cast<std::uint64_t>(wrote);
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return true;
}

Result<Fd> write_locked_file(const FileName& name, std::string_view bytes, mode_t mode) {
  const auto failed = [&](const char* doing) { return system_error(cat(doing, name.path), errno); };
  Draft draft(name, mode);
  if (draft.get() < 0) return failed("cannot write ");
  // It has no name yet, so nobody finds it unlocked.
  (void)::flock(draft.get(), LOCK_EX | LOCK_NB);
  if (::fchmod(draft.get(), mode) != 0) return failed("cannot write ");  // Whatever the umask.
  if (!write_all(draft.get(), bytes)) return failed("cannot write ");
  // Opened before the file has its name: a process without a free descriptor is to leave nothing.
  const std::string above = folder_of(name.in_folder());
  const Fd folder(::openat(name.folder, above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return failed("cannot sync ");
  if (::fsync(draft.get()) != 0 || !draft.publish()) return failed("cannot write ");
  if (::fsync(folder.get()) != 0) return failed("cannot sync ");
  return draft.take();
}

Status sync_folder(const std::string& path) {
  const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder && ::fsync(folder.get()) == 0) return {};
  return system_error(cat("cannot sync ", path), errno);
}

Status write_file_atomically(const std::string& path, std::string_view bytes, mode_t mode) {
  const auto file = write_locked_file(path, bytes, mode);
  return file ? Status() : file.error();
}

std::string end_of(const std::string& path, std::uint64_t from) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0) return {};
  const auto size = static_cast<std::size_t>(about.st_size);
  const std::size_t start =
      std::max(std::min<std::size_t>(from, size), size > kTailBytes ? size - kTailBytes : 0);
  std::string bytes(size - start, '\0');
  const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(start));
  bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return bytes;
}

std::string tail(const std::string& path, std::size_t lines) {
  const std::string bytes = end_of(path, 0);
  std::size_t from = bytes.size();
  for (std::size_t i = 0; i < lines && from > 0; ++i) {
    // The line break at `from - 1` ends the line before.
    const std::size_t newline = from < 2 ? std::string::npos : bytes.rfind('\n', from - 2);
    from = newline == std::string::npos ? 0 : newline + 1;
  }
  return bytes.substr(from);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::uint64_t free_bytes(const std::string& path) {
  struct statvfs system {};
  if (::statvfs(path.c_str(), &system) != 0) return 0;
  return std::uint64_t{system.f_bavail} * system.f_frsize;
}

void read_ahead(int file, std::uint64_t at, std::uint64_t bytes) {
  (void)::posix_fadvise(file, static_cast<off_t>(at), static_cast<off_t>(bytes),
                        POSIX_FADV_WILLNEED);
}

}  // namespace holdfast::os
