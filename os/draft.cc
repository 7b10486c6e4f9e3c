#include "os/draft.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/text.h"
#include "os/random_bits.h"

namespace holdfast::os {

Draft::Draft(FileName name, mode_t mode)
    : name_(std::move(name)), draft_(cat(name_.in_folder(), '.', random_bits(), ".tmp")) {
  if (::access("/proc/self/fd", X_OK) == 0) {  // publish() names the file through this folder.
    const std::string folder = folder_of(draft_);
    file_.reset(::openat(name_.folder, folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, mode));
  }
  if (file_) return;
  constexpr int kNew = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  file_.reset(::openat(name_.folder, draft_.c_str(), kNew, mode));
  named_ = static_cast<bool>(file_);
}

bool Draft::publish() {
  if (!named_) {  // linkat() replaces no file, so this one needs a name of its own first.
    const std::string content = cat("/proc/self/fd/", get());
    named_ =
        ::linkat(AT_FDCWD, content.c_str(), name_.folder, draft_.c_str(), AT_SYMLINK_FOLLOW) == 0;
    if (!named_) return false;
  }
  const std::string& name = name_.in_folder();
  if (::renameat(name_.folder, draft_.c_str(), name_.folder, name.c_str()) != 0) return false;
  named_ = false;
  return true;
}

Draft::~Draft() {
  if (named_) ::unlinkat(name_.folder, draft_.c_str(), 0);
}

}  // namespace holdfast::os
