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
    done_ = at_;
    bytes = bytes.subspan(pages);
    if (bytes.empty()) return true;
  } else if (is_direct_ && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    return false;
  }
  // It is the rest of a page, or the file system had promised what it can not do.
  if (std::exchange(is_direct_, false) && !set_direct(file_, false)) return false;
  return write_cached(bytes);
}

// It goes to the disk soon, so that no other writer has to wait for so much at once, and leaves the
// page cache from there. The disk writes a window while the next one is filled.
bool DirectWriter::write_cached(std::span<const std::byte> bytes) {
  if (!write_at(file_, at_, bytes)) return false;
  const auto from = static_cast<off_t>(done_);
  const auto before = static_cast<off_t>(at_ - done_);
  const auto now = static_cast<off_t>(bytes.size());
  constexpr unsigned kDone =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  (void)::sync_file_range(file_, static_cast<off_t>(at_), now, SYNC_FILE_RANGE_WRITE);
  if (before > 0 && ::sync_file_range(file_, from, before, kDone) == 0) {
    (void)::posix_fadvise(file_, from, before, POSIX_FADV_DONTNEED);
  }
  done_ = at_;
  at_ += bytes.size();
  return true;  // end() tells what could not be written.
}

bool DirectWriter::end() const {
  return ::fsync(file_) == 0;
}

}  // namespace holdfast::os
