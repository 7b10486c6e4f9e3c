// SoloFolder: the runtime folder of a process that is a world of its own, without a launcher.
//
// It goes with the process. One that was killed, or ends by _exit(), leaves it: then the next such
// process of the user removes it, which sees by a lock that the kernel lets go of that nobody uses
// it any more.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "os/fd.h"

namespace holdfast::runtime {

// Whether that of a process that lives; `path` is a folder's.
bool is_solo_folder_in_use(const std::string& path);

class SoloFolder {
 public:
  SoloFolder() = default;
  ~SoloFolder() { remove(); }
  SoloFolder(const SoloFolder&) = delete;
  SoloFolder& operator=(const SoloFolder&) = delete;

  // Removes those of dead processes, and makes one with this name, which begins with "solo-".
  // Returns its path.
  [[nodiscard]] Result<std::string> make(const std::string& name);
  // Nothing in a forked child: it is its parent's.
  void remove();

 private:
  std::string path_;
  os::Fd lock_;
  pid_t owner_ = 0;
};

}  // namespace holdfast::runtime
