#include "os/sparse_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/shared_file.h"

namespace holdfast::os {

Result<SparseFile> SparseFile::make(const std::string& path, std::uint64_t bytes) {
  if (Status made = make_directories(folder_of(path)); !made) return made.error();
  const std::string draft = path + ".new";
  ::unlink(draft.c_str());
  SparseFile made;
  made.path_ = path;
  made.file_.reset(::open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!made.file_) return system_error(cat("cannot create ", draft), errno);
  if (::ftruncate(made.file_.get(), static_cast<off_t>(bytes)) == 0) {
    made.mapping_ = Mapping::of(made.file_, 0, bytes, Access::kWrite);
  }
  if (made.mapping_) return made;
  const int why = errno;
  ::unlink(draft.c_str());
  return system_error(cat("cannot map ", bytes, " bytes of ", path), why);
}

Result<SparseFile> SparseFile::open(const std::string& path) {
  Result<Found> found = find_file(path, Access::kWrite);
  if (!found) return found.error();
  SparseFile opened;
  opened.path_ = path;
  if (!found->file || found->bytes == 0) return opened;
  Result<Mapping> mapping = map_file(*found, Access::kWrite, path);
  if (!mapping) return mapping.error();
  opened.mapping_ = *std::move(mapping);
  opened.file_ = std::move(found->file);
  return opened;
}

void SparseFile::discard() {
  ::unlink((path_ + ".new").c_str());
}

Status SparseFile::take(std::uint64_t offset, std::uint64_t bytes, const std::string& whose) {
  if (bytes == 0) return {};
  return take_or_say(file_, offset, bytes, path_, whose);
}

void SparseFile::drop(std::uint64_t offset, std::uint64_t bytes) {
  (void)drop_memory(file_, offset, bytes);  // The memory is only kept if the kernel refuses.
}

std::uint64_t SparseFile::taken() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return 0;
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

}  // namespace holdfast::os
