#include "os/direct_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "os/files.h"
#include "os/mapping.h"

namespace holdfast::os {
namespace {

bool set_direct(int file, bool direct) {
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && ::fcntl(file, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

}  // namespace

DirectWriter::DirectWriter(int file) : file_(file), is_direct_(set_direct(file, true)) {}

bool DirectWriter::write(std::span<const std::byte> bytes) {
  const std::size_t pages = bytes.size() / kPage * kPage;
  if (is_direct_ && write_at(file_, at_, bytes.first(pages))) {
    at_ += pages;
    bytes = bytes.subspan(pages);
    if (bytes.empty()) return true;
  } else if (is_direct_ && errno != EINVAL) {  // EINVAL: it had promised what it can not do.
    return false;
  }
  if (std::exchange(is_direct_, false) && !set_direct(file_, false)) return false;
  if (!write_at(file_, at_, bytes) || ::fdatasync(file_) != 0) return false;
  const auto from = static_cast<off_t>(at_);
  at_ += bytes.size();
  // So that the page cache keeps no more than a window of it.
  (void)::posix_fadvise(file_, from, static_cast<off_t>(bytes.size()), POSIX_FADV_DONTNEED);
  return true;
}

bool DirectWriter::end() const {
  return ::fsync(file_) == 0;
}

}  // namespace holdfast::os
