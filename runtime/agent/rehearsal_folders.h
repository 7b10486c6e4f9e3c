// RehearsalFolders: where the rehearsals of a host's ranks have their files, below the job's
// folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace holdfast::runtime {

// In one thread only.
class RehearsalFolders {
 public:
  // Removes what a former agent has left of these places.
  RehearsalFolders(std::string job_directory, const std::vector<std::string>& places);
  ~RehearsalFolders();  // Waits until all is removed.
  RehearsalFolders(const RehearsalFolders&) = delete;
  RehearsalFolders& operator=(const RehearsalFolders&) = delete;

  // The folder for the rehearsal of this place: empty, or `goes_on` with what a first process has
  // left.
  [[nodiscard]] Status make(const std::string& place, bool goes_on);
  // After its end: what it has left as its verdict, which may be any bytes. Nothing: no file of
  // this user. Unless it is to be gone on with, the folder goes, in another thread: its files may
  // be as large as the rank's state.
  [[nodiscard]] std::optional<std::string> take(const std::string& place);

 private:
  struct Removal {
    std::atomic<bool> hurries{false};
    std::atomic<bool> done{false};
    std::thread thread;
  };
  void remove(const std::string& name);

  std::string directory_;
  std::uint64_t removed_ = 0;
  std::vector<std::unique_ptr<Removal>> removals_;
};

}  // namespace holdfast::runtime
