// Draft: a file that gets its name once it is whole, in place of the file that had it before.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "os/fd.h"

namespace holdfast::os {

// A process that is killed while it writes leaves nothing. Where the file system has no files
// without a name, it leaves the draft, beside `path`.
class [[nodiscard]] Draft {
 public:
  // Makes an empty file, with `mode` less the umask. If that fails, get() is below 0 and errno says
  // why.
  Draft(std::string path, mode_t mode);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  [[nodiscard]] int get() const { return file_.get(); }
  // Gives it the name `path`. False: errno says why.
  [[nodiscard]] bool publish();
  // The file, which stays open and, where it has one, keeps its name.
  [[nodiscard]] Fd take() { return std::move(file_); }

 private:
  const std::string path_;
  const std::string draft_;  // Its name before `path`.
  bool named_ = false;       // Whether it has that one now.
  Fd file_;
};

}  // namespace holdfast::os
