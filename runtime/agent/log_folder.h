// LogFolder: where the processes of an agent write, watched. A disk that is full, or a folder that
// somebody has removed, would end the logs without a word; the training does not need them.
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

  // Requires: `path` is there. `say` is called at most once, in any thread, with what is wrong and
  // what to do. Tests give another trial than the true one.
  LogFolder(std::string path, std::function<void(std::string)> say, Duration every = kLookEvery,
            Trial trial = {});
  ~LogFolder();  // Waits a second at most for a trial that hangs, and nothing is said afterwards.
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // Where a process whose log is to be `log`, in the folder, can write: there, the folder being
  // made anew if it went away, or /dev/null.
  [[nodiscard]] std::string output_for(const std::string& log);

 private:
  // What the thread uses. It has a share in it: one that hangs outlives the LogFolder.
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

  const std::string path_;
  const std::shared_ptr<Watch> watch_;
  // Of its own: where the folder is another host's, a look may take long, and the agent's loop must
  // not wait for it.
  std::thread thread_;
};

}  // namespace holdfast::runtime
