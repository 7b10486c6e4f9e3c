// LogFolder: where the processes of an agent write, watched. A disk that is full, or a folder that
// somebody has removed, would end the logs without a word; the training does not need them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/ids.h"

namespace holdfast::runtime {

class LogFolder {
 public:
  static constexpr Duration kLookEvery = std::chrono::seconds(5);

  // `path` is there. `say` is called once at most, in any thread: what is wrong, and what to do.
  LogFolder(std::string path, std::function<void(std::string)> say, Duration every = kLookEvery);
  ~LogFolder();
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // Where a process whose log is to be `log`, in the folder, can write: there, the folder being
  // made anew if it went away, or /dev/null.
  [[nodiscard]] std::string output_for(const std::string& log);

 private:
  void watch();
  void tell(int error_number);

  const std::string path_;
  const std::function<void(std::string)> say_;
  const Duration every_;
  std::atomic<bool> told_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  // Of its own: where the folder is another host's, a look may take long, and the agent's loop must
  // not wait for it. Last: it uses all above.
  std::thread thread_;
};

}  // namespace holdfast::runtime
