// SoloFolder: the runtime folder of a process that trains alone, without a launcher.
//
// The process removes the folder at its end. A process that is killed, or that ends by _exit(),
// leaves it. Then the kernel releases the folder's lock. So the user's next solo process knows that
// nobody uses the folder, and removes it.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "os/fd.h"
#include "os/folder.h"

namespace holdfast::runtime {

// Whether the process that made the folder lives.
bool is_solo_folder_in_use(const os::Folder& folder);

class SoloFolder {
 public:
  SoloFolder() = default;
  ~SoloFolder() { remove(); }
  SoloFolder(const SoloFolder&) = delete;
  SoloFolder& operator=(const SoloFolder&) = delete;

  // Removes the folders of dead processes. Makes one with this name, which begins with "solo-", and
  // returns its path.
  [[nodiscard]] Result<std::string> make(const std::string& name);
  // Does nothing in a forked child, since the folder is its parent's.
  void remove();

 private:
  os::Folder mine_;   // The user's folder.
  std::string name_;  // This folder's name in mine_; empty: there is none.
  os::Fd lock_;
  pid_t owner_ = 0;
};

}  // namespace holdfast::runtime
