// LogFolder: watches the folder where the processes of an agent write. If the disk is full, or
// somebody has removed the folder, the logs would end without a word, because training goes on
// without them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/ids.h"

namespace holdfast::runtime {

class LogFolder {
 public:
  static constexpr Duration kLookEvery = std::chrono::seconds(5);
  // Tries to write in the folder: 0, or the error.
  using Trial = std::function<int(const std::string& folder)>;

  // Requires: `path` is there. `say` is called at most once, in any thread, and says what is wrong
  // and what to do. Tests give a trial of their own.
  LogFolder(std::string path, std::function<void(std::string)> say, Duration every = kLookEvery,
            Trial trial = {});
  ~LogFolder();  // Waits a second at most for a trial that hangs. Afterwards nothing is said.
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return watch_->path; }

  // Where a process can write its log: to `log`, or to /dev/null. Makes the folder anew if it is
  // gone.
  [[nodiscard]] std::string output_for(const std::string& log);

 private:
  // What the thread uses. Shared, because a thread that hangs outlives the LogFolder.
  struct Watch {
    std::string path;
    std::function<void(std::string)> say;
    Duration every{};
    Trial trial;
    std::atomic<bool> told = false;
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    bool trying = false;
  };
  static void run(Watch& watch);
  static void tell(Watch& watch, int error_number);

  const std::shared_ptr<Watch> watch_;
  // A thread of its own, because a look at a folder on another host may take long, and the agent's
  // loop must not wait.
  std::thread thread_;
};

}  // namespace holdfast::runtime
