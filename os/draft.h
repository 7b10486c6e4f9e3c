// Draft: a file that gets its name once it is whole, in place of the file that had it before.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "os/fd.h"
#include "os/files.h"

namespace holdfast::os {

// A process that is killed while it writes leaves nothing. Where the file system has no files
// without a name, it leaves the draft, beside the file.
class [[nodiscard]] Draft {
 public:
  // Makes an empty file, with `mode` less the umask. If that fails, get() is below 0 and errno says
  // why.
  Draft(FileName name, mode_t mode);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  [[nodiscard]] int get() const { return file_.get(); }
  // Gives the file its name, in place of the file that had it. False: errno says why.
  [[nodiscard]] bool publish();
  // Returns the file, which stays open. If it was published, it keeps its name.
  [[nodiscard]] Fd take() { return std::move(file_); }

 private:
  const FileName name_;
  const std::string draft_;  // Its name until it is published.
  bool named_ = false;       // Whether it has the name draft_ now.
  Fd file_;
};

}  // namespace holdfast::os
