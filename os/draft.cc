#include "os/draft.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/text.h"
#include "os/files.h"
#include "os/random_bits.h"

namespace holdfast::os {

Draft::Draft(std::string path, mode_t mode)
    : path_(std::move(path)), draft_(cat(path_, '.', random_bits(), ".tmp")) {
  if (::access("/proc/self/fd", X_OK) == 0) {  // Through which it gets its name.
    file_.reset(::open(folder_of(path_).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, mode));
  }
  if (file_) return;
  file_.reset(::open(draft_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  named_ = static_cast<bool>(file_);
}

bool Draft::publish() {
  if (!named_) {  // No call puts a file without a name in another's place.
    const std::string content = cat("/proc/self/fd/", get());
    named_ = ::linkat(AT_FDCWD, content.c_str(), AT_FDCWD, draft_.c_str(), AT_SYMLINK_FOLLOW) == 0;
    if (!named_) return false;
  }
  if (::rename(draft_.c_str(), path_.c_str()) != 0) return false;
  named_ = false;
  return true;
}

Draft::~Draft() {
  if (named_) ::unlink(draft_.c_str());
}

}  // namespace holdfast::os
