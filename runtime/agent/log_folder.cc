#include "runtime/agent/log_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "os/draft.h"
#include "os/fd.h"
#include "os/files.h"

namespace holdfast::runtime {
namespace {

constexpr std::size_t kTrialBytes = 16384;
constexpr auto kPatience = std::chrono::seconds(1);

// Writes a file, because no system call tells how much a quota leaves. Returns 0 or the error.
int try_to_write(const std::string& folder) {
  const os::Draft file(folder + "/.holdfast-logs", 0600);
  if (file.get() < 0) return errno;
  const std::array<char, kTrialBytes> bytes{};
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    done += static_cast<std::size_t>(wrote);
  }
  return 0;
}

const char* hint(int error_number) {
  if (error_number == ENOSPC || error_number == EDQUOT) return "free some room there";
  if (error_number == ENOENT) return "make the folder again";
  return "see to it that this user can write there";
}

// Whether the error is about the folder, and not about a signal or a passing lack of descriptors or
// memory.
bool is_the_folders(int error_number) {
  return error_number != 0 && error_number != EINTR && error_number != EMFILE &&
         error_number != ENFILE && error_number != ENOMEM;
}

}  // namespace

LogFolder::LogFolder(std::string path, std::function<void(std::string)> say, Duration every,
                     Trial trial)
    : watch_(std::make_shared<Watch>()) {
  watch_->path = std::move(path);
  watch_->say = std::move(say);
  watch_->every = every;
  watch_->trial = trial ? std::move(trial) : try_to_write;
  try {
    thread_ = std::thread([watch = watch_] { run(*watch); });
  } catch (const std::system_error&) {  // No thread can be had: output_for() still tells.
  }
}

LogFolder::~LogFolder() {
  std::unique_lock lock(watch_->mutex);
  watch_->over = true;
  watch_->changed.notify_all();
  if (!thread_.joinable()) return;
  const bool ends = watch_->changed.wait_for(lock, kPatience, [this] { return !watch_->trying; });
  lock.unlock();
  // A thread that a file server holds says nothing any more, and uses only what it owns.
  ends ? thread_.join() : thread_.detach();
}

void LogFolder::run(Watch& watch) {
  std::unique_lock lock(watch.mutex);
  while (!watch.changed.wait_for(lock, watch.every, [&] { return watch.over || watch.told; })) {
    watch.trying = true;
    lock.unlock();
    const int error_number = watch.trial(watch.path);
    lock.lock();
    watch.trying = false;
    watch.changed.notify_all();
    if (watch.over) return;
    lock.unlock();
    if (is_the_folders(error_number)) tell(watch, error_number);
    lock.lock();
  }
}

void LogFolder::tell(Watch& watch, int error_number) {
  if (watch.told.exchange(true)) return;
  watch.say(cat("nothing can be written in ", watch.path, " (", std::strerror(error_number),
                "), so the logs end there: ", hint(error_number),
                ", or give another --log_dir next time; the training goes on"));
}

std::string LogFolder::output_for(const std::string& log) {
  const auto opens = [&log] {
    return bool(os::Fd(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)));
  };
  if (opens()) return log;
  const int error_number = errno;
  if (!is_the_folders(error_number))
    return log;  // Not the folder's fault: starting the process reports it, if it lasts.
  tell(*watch_, error_number);
  if (error_number == ENOENT && os::make_directories(watch_->path, 0755) && opens()) return log;
  return "/dev/null";
}

}  // namespace holdfast::runtime
