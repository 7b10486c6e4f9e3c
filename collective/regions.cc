#include "collective/regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/number.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/random_bits.h"
#include "os/shared_file.h"

namespace holdfast::collective {
namespace {

constexpr std::size_t kWholePage = 4096;
constexpr const char* kRegionPrefix = "sums-";
constexpr int kRankBits = 16;  // The low bits of an id are its rank: a successor finds old files.

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kWholePage - 1) / kWholePage * kWholePage;
}

bool is_rank_of(RegionId id, int rank) {
  return (id & ((RegionId{1} << kRankBits) - 1)) == static_cast<RegionId>(rank);
}

RegionId new_id(int rank) {
  return (os::random_bits() | RegionId{1} << kRankBits) >> kRankBits << kRankBits |
         static_cast<RegionId>(rank);
}

Error no_room(const std::string& path, std::size_t bytes) {
  return os::no_room(os::folder_of(path), "the memory of sums", bytes);
}

// Sizes the file and takes all its memory at once.
Status take(const os::Fd& file, const std::string& path, std::size_t bytes) {
  struct statvfs system {};
  const bool limited = ::fstatvfs(file.get(), &system) == 0 && system.f_blocks > 0;
  if (limited && bytes / system.f_frsize >= system.f_bavail) return no_room(path, bytes);
  const int error = os::take_memory(file, 0, bytes);
  if (error == 0) return {};
  if (error == ENOSPC) return no_room(path, bytes);
  return Error{Blame::kWorld, cat("can not size ", path, ": ", std::strerror(error))};
}

// Copies the pages into the file, and then maps the file at their addresses.
Status take_over(const os::Fd& file, const std::string& path, std::span<std::byte> pages) {
  std::size_t done = 0;
  while (done < pages.size()) {
    const ssize_t n =
        ::pwrite(file.get(), pages.data() + done, pages.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EFAULT) {
      return Error{Blame::kUser, cat("the ", pages.size(),
                                     " bytes that are to be registered are "
                                     "not all memory of this process that can be read")};
    }
    if (n <= 0) {
      return Error{Blame::kWorld, cat("can not fill ", path, ": ", os::last_system_error())};
    }
    done += static_cast<std::size_t>(n);
  }
  if (::mmap(pages.data(), pages.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(),
             0) == MAP_FAILED) {
    return Error{Blame::kWorld, cat("can not map ", path, ": ", os::last_system_error())};
  }
  return {};
}

// Makes the pages private again, with the same contents. If there is no memory for that, they stay
// mapped to the file, which has no name any more.
void give_back(std::span<std::byte> pages) {
  void* copy =
      ::mmap(nullptr, pages.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;
  std::memcpy(copy, pages.data(), pages.size());
  if (::mremap(copy, pages.size(), pages.size(), MREMAP_MAYMOVE | MREMAP_FIXED, pages.data()) ==
      MAP_FAILED) {
    ::munmap(copy, pages.size());
  }
}

}  // namespace

Region::~Region() {
  const bool is_ours = owner_ == ::getpid();  // A forked child must not remove its parent's file.
  if (is_ours && !path_.empty()) ::unlink(path_.c_str());
  if (!mapping_ && !bytes_.empty()) give_back({bytes_.data(), whole_pages(bytes_.size())});
  // The other ranks keep the file mapped as long as their groups live. So its memory is freed by
  // punching a hole; if a rank in an aborted operation still writes there, it gets new pages.
  if (is_ours && mapping_) {
    (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      static_cast<off_t>(whole_pages(bytes_.size())));
  }
}

Regions::Regions(std::string directory, int rank) : directory_(std::move(directory)), rank_(rank) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kRegionPrefix)) continue;
    const RegionId id = std::strtoull(name.c_str() + std::strlen(kRegionPrefix), nullptr, 16);
    if (is_rank_of(id, rank)) std::filesystem::remove(entry.path(), ignored);
  }
}

std::string Regions::path_of(RegionId id) const {
  return cat(directory_, "/", kRegionPrefix, hex(id));
}

Status Regions::make_file(Region& region, std::size_t bytes) const {
  region.id_ = new_id(rank_);
  const std::string path = path_of(region.id_);
  region.file_ =
      os::Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!region.file_) {
    return Error{Blame::kWorld, cat("can not make ", path, ": ", os::last_system_error())};
  }
  region.path_ = path;
  return take(region.file_, path, whole_pages(bytes));
}

Result<std::shared_ptr<Region>> Regions::add(std::byte* memory, std::size_t bytes) {
  const auto refuse = [](std::string what) { return Error{Blame::kUser, std::move(what)}; };
  constexpr std::size_t kMost = std::size_t{1} << 46;
  if (bytes == 0 || bytes > kMost) return refuse(cat("no memory has ", bytes, " bytes"));
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  if (address % kWholePage != 0) {
    return refuse(cat("memory that is to be registered begins at a multiple of ", kWholePage,
                      " bytes, as memory does that mmap() gave; this lies ", address % kWholePage,
                      " beyond one"));
  }
  const std::lock_guard lock(mutex_);
  for (const Known& k : known_) {
    if (memory != nullptr && memory < k.bytes.data() + whole_pages(k.bytes.size()) &&
        k.bytes.data() < memory + whole_pages(bytes)) {
      return refuse("this memory is registered, or a part of it");
    }
  }
  std::shared_ptr<Region> region(new Region);
  if (const Status made = make_file(*region, bytes); !made) return made.error();
  if (memory != nullptr) {
    const Status taken = take_over(region->file_, region->path_, {memory, whole_pages(bytes)});
    if (!taken) return taken.error();
    region->bytes_ = {memory, bytes};
  } else {
    auto mapping = map_shared(region->file_, region->path_, 0, whole_pages(bytes));
    if (!mapping) return mapping.error();
    region->mapping_ = *std::move(mapping);
    region->bytes_ = region->mapping_->bytes().first(bytes);
  }
  known_.push_back({region->id_, region->bytes_});
  return region;
}

void Regions::remove(const Region& region) {
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [&](const Known& k) { return k.id == region.id(); });
}

RegionAddress Regions::address_of(const std::byte* data, std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::shared_lock lock(mutex_);
  for (const Known& k : known_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(k.bytes.data());
    if (bytes == 0 || at < begin || at - begin >= k.bytes.size()) continue;
    if (bytes <= k.bytes.size() - (at - begin)) return {k.id, at - begin};
  }
  return {};
}

Result<SharedMapping> Regions::open(RegionId id) const {
  const std::string path = path_of(id);
  const auto file = open_shared(path);
  if (!file) return file.error();
  const off_t bytes = ::lseek(file->get(), 0, SEEK_END);
  if (bytes < 0) {
    return Error{Blame::kWorld, cat("can not look at ", path, ": ", os::last_system_error())};
  }
  return map_shared(*file, path, 0, static_cast<std::uint64_t>(bytes));
}

}  // namespace holdfast::collective
