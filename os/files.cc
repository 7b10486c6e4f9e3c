#include "os/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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

bool is_plain_absolute(const std::filesystem::path& path) {
  return path.is_absolute() && path == path.lexically_normal() && path.has_filename();
}

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

Status make_directories(const std::string& path, mode_t mode) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    struct stat about {};
    // The error of mkdir() counts: that stat() finds no folder is no news.
    const int error_number = ::mkdir(folder.c_str(), mode) == 0 ? 0 : errno;
    const bool there =
        error_number == 0 || (::stat(folder.c_str(), &about) == 0 && S_ISDIR(about.st_mode));
    if (!there) return system_error(cat("cannot make the folder ", folder), error_number);
    if (end == std::string::npos) return {};
  }
}

Status remove_tree(const std::string& path, const std::string& prefix) {
  const std::filesystem::path target(path);
  const std::filesystem::path limit(prefix);
  const bool beneath = is_plain_absolute(target) && is_plain_absolute(limit) &&
                       target.string().starts_with(limit.string() + "/");
  const Error refusal{Blame::kUser, cat("will not remove ", path, ": it is not beneath ", prefix)};
  if (!beneath) return refusal;
  std::error_code error;
  // A link on the way could lead out. If the last component is a link, the link itself is removed.
  const auto real_folder = std::filesystem::canonical(target.parent_path(), error);
  if (error == std::errc::no_such_file_or_directory) return {};
  const auto real_limit = error ? limit : std::filesystem::canonical(limit, error);
  if (error) return system_error(cat("cannot look at ", path), error);
  if (!(real_folder.string() + "/").starts_with(real_limit.string() + "/")) return refusal;
  std::filesystem::remove_all(target, error);
  if (error) return system_error(cat("cannot remove ", path), error);
  return {};
}

Result<std::string> read_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_error(cat("cannot open ", path), errno);
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

Result<Fd> write_locked_file(const std::string& path, std::string_view bytes, mode_t mode) {
  const auto failed = [&](const char* doing) { return system_error(cat(doing, path), errno); };
  Draft draft(path, mode);
  if (draft.get() < 0) return failed("cannot write ");
  // It has no name yet, so nobody finds it unlocked.
  (void)::flock(draft.get(), LOCK_EX | LOCK_NB);
  if (::fchmod(draft.get(), mode) != 0) return failed("cannot write ");  // Whatever the umask.
  if (!write_all(draft.get(), bytes)) return failed("cannot write ");
  if (::fsync(draft.get()) != 0 || !draft.publish()) return failed("cannot write ");
  const Fd folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) return failed("cannot sync ");
  return draft.take();
}

Status write_file_atomically(const std::string& path, std::string_view bytes, mode_t mode) {
  const auto file = write_locked_file(path, bytes, mode);
  return file ? Status() : file.error();
}

Fd lock_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(file) : Fd();
}

Fd lock_folder(const std::string& path) {
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  int result = -1;
  do {
    result = folder ? ::flock(folder.get(), LOCK_EX) : 0;
  } while (result != 0 && errno == EINTR);
  return result == 0 ? std::move(folder) : Fd();
}

bool is_locked(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  // A shared lock: two processes that look at once do not take each other for the holder.
  return file && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
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

}  // namespace holdfast::os
