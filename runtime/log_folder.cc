#include "runtime/log_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "io/fd.h"
#include "io/files.h"

namespace holdfast::runtime {
namespace {

constexpr std::size_t kTrialBytes = 16384;

// A file that nobody sees, where the file system has such.
io::Fd trial_file(const std::string& folder) {
  io::Fd file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (file || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  const std::string name = cat(folder, "/.holdfast-logs-", ::getpid());
  file.reset(::open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const int error_number = errno;
  if (file) ::unlink(name.c_str());
  errno = error_number;
  return file;
}

// Tried: what a quota leaves, no question to the file system answers. 0, or the error.
int try_to_write(const std::string& folder) {
  const io::Fd file = trial_file(folder);
  if (!file) return errno;
  const std::array<char, kTrialBytes> bytes{};
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    done += static_cast<std::size_t>(wrote);
  }
  return 0;
}

const char* remedy(int error_number) {
  if (error_number == ENOSPC || error_number == EDQUOT) return "free some room there";
  if (error_number == ENOENT) return "make the folder again";
  return "see to it that this user can write there";
}

}  // namespace

LogFolder::LogFolder(std::string path, std::function<void(std::string)> say, Duration every)
    : path_(std::move(path)), say_(std::move(say)), every_(every) {
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {  // No thread can be had: output_for() still tells.
  }
}

LogFolder::~LogFolder() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LogFolder::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, every_, [this] { return over_ || told_; })) {
    lock.unlock();
    if (const int error_number = try_to_write(path_); error_number != 0) tell(error_number);
    lock.lock();
  }
}

void LogFolder::tell(int error_number) {
  if (told_.exchange(true)) return;
  say_(cat("nothing can be written in ", path_, " (", std::strerror(error_number),
           "), so the logs end there: ", remedy(error_number),
           ", or give another --log_dir next time; the training goes on"));
}

std::string LogFolder::output_for(const std::string& log) {
  const auto try_to_open = [&log] {
    return io::Fd(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  };
  if (try_to_open()) return log;
  const int error_number = errno;
  tell(error_number);
  if (error_number == ENOENT && io::make_directories(path_, 0755) && try_to_open()) return log;
  return "/dev/null";
}

}  // namespace holdfast::runtime
