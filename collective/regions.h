// Regions: memory of this rank that the other ranks can map, so that they write results straight
// into it. Regions may be added and removed while groups live. Each rank adds its own; the ranks
// need not agree on sizes or addresses.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "collective/shared_mapping.h"

namespace holdfast::collective {

// Names a region; never used twice in a run. 0: no region.
using RegionId = std::uint64_t;

// The address of numbers in a form that means the same to all ranks. Lies in shared memory.
struct RegionAddress {
  RegionId region = 0;
  std::uint64_t offset = 0;
};

// One region: a file in the job's directory, mapped. The destructor removes the file.
class Region {
 public:
  // Memory that the caller gave becomes private again and keeps its contents. In a forked child
  // that affects the child alone, and the file stays.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  [[nodiscard]] RegionId id() const { return id_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] int fd() const { return file_.get(); }

 private:
  friend class Regions;
  Region() = default;
  pid_t owner_ = ::getpid();
  RegionId id_ = 0;
  std::string path_;
  os::Fd file_;
  std::span<std::byte> bytes_;
  SharedMapping mapping_;  // Null if the caller gave the memory.
};

// The regions of one rank. Any thread.
class Regions {
 public:
  // Removes the files that a predecessor of this rank has left in the directory. Requires: the
  // predecessor is dead.
  Regions(std::string directory, int rank);

  // `memory` null: allocates zeros. Else shares the pages at `memory`, which keep their address and
  // contents. Requires: nobody writes there during the call, and nothing else lies there up to the
  // end of the last page. Errors: a size or an address that is impossible, memory that is
  // registered already (kUser); no room on the file system (kWorld). After an error nothing has
  // changed.
  Result<std::shared_ptr<Region>> add(std::byte* memory, std::size_t bytes);
  // Requires: no operation in the region is under way.
  void remove(const Region& region);

  // The address of these bytes, if one region of this rank holds all of them; else region 0.
  [[nodiscard]] RegionAddress address_of(const std::byte* data, std::size_t bytes) const;
  // Maps a whole region of any rank of this host.
  [[nodiscard]] Result<SharedMapping> open(RegionId id) const;

 private:
  [[nodiscard]] std::string path_of(RegionId id) const;
  Status make_file(Region& region, std::size_t bytes) const;

  std::string directory_;
  int rank_;
  mutable std::shared_mutex mutex_;
  struct Known {
    RegionId id;
    std::span<const std::byte> bytes;
  };
  std::vector<Known> known_;
};

}  // namespace holdfast::collective
