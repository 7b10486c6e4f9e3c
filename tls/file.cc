#include "tls/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/text.h"
#include "os/errors.h"
#include "os/fd.h"

namespace holdfast::tls {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

FileMark mark_of(const struct stat& about) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto changed = nanoseconds(about.st_ctim);
  return {about.st_dev,  about.st_ino,
          about.st_size, nanoseconds(about.st_mtim),
          changed,       nanoseconds(now) - changed > kSecond};
}

}  // namespace

FileMark mark_of(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 ? mark_of(about) : FileMark();
}

Result<FileContent> read_file(const std::string& path, std::string_view what,
                              std::size_t most_bytes, Guard guard) {
  const auto wrong = [&](const std::string& why) {
    return Error{Blame::kUser, cat(what, ", ", path, ", ", why)};
  };
  const bool secret = guard == Guard::kSecret;
  // O_NONBLOCK: if this is a FIFO, the call must not wait.
  const os::Fd file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (secret ? O_NOFOLLOW : 0)));
  if (!file && errno == ELOOP && secret) return wrong("is a link: name the file itself");
  if (!file) {
    const bool want = errno == EMFILE || errno == ENFILE;  // No descriptor is left.
    const auto error = wrong(cat("can not be opened: ", os::last_system_error()));
    return Error{want ? Blame::kWorld : Blame::kUser, error.what};
  }
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) {
    return wrong(cat("can not be read: ", os::last_system_error()));
  }
  if (!S_ISREG(about.st_mode)) return wrong("is no plain file");
  if (secret && about.st_uid != ::geteuid()) return wrong("belongs to another user: make your own");
  if (secret && (about.st_mode & 0077) != 0) {
    return wrong("is open to other users: chmod 600, and change the password if they may know it");
  }
  if ((about.st_mode & S_IWOTH) != 0) return wrong("can be changed by every user: chmod o-w");
  FileContent content{{}, mark_of(about)};
  // One byte more tells whether there is more.
  content.bytes.resize(std::min(static_cast<std::size_t>(about.st_size), most_bytes) + 1);
  std::size_t size = 0;
  while (size < content.bytes.size()) {
    const ssize_t got =
        ::read(file.get(), content.bytes.data() + size, content.bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return wrong(cat("can not be read: ", os::last_system_error()));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > most_bytes) return wrong(cat("is larger than ", most_bytes, " bytes"));
  if (size == content.bytes.size()) return wrong("grows while it is read: try again");
  if (size == 0) return wrong("is empty");
  content.bytes.resize(size);
  return content;
}

}  // namespace holdfast::tls
