// Regions: memory of this rank that the others can map, so that results are written straight into
// it. It may come and go while groups live. Each rank has its own, so there is no layout to agree
// on.
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

// Of a region: no other of the run has it, before or after. 0: none.
using RegionId = std::uint64_t;

// Where numbers lie, said so that the other ranks find them. Itself it lies in shared memory.
struct RegionAddress {
  RegionId region = 0;
  std::uint64_t offset = 0;
};

// A file of the job's directory as memory; it is removed with it.
class Region {
 public:
  // Memory that the caller gave becomes private again, with what it holds. It still belongs to the
  // caller. In a forked child this is so for the child alone.
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
  SharedMapping mapping_;  // Null: the memory was given.
};

// The regions of one rank. Any thread.
class Regions {
 public:
  // Removes what a predecessor of this rank has left in the directory. The predecessor must be
  // dead.
  Regions(std::string directory, int rank);

  // Null: new memory of zeros. Else the pages at `memory`, which keep their address and what they
  // hold. Nobody uses them meanwhile, and up to the end of the last page nothing else lies there.
  // Errors: a size or an address that is impossible, memory that is registered (kUser); no room on
  // the file system (kWorld). Then nothing has changed.
  Result<std::shared_ptr<Region>> add(std::byte* memory, std::size_t bytes);
  // No operation on it is under way.
  void remove(const Region& region);

  // Where these bytes lie, if they lie within one region.
  [[nodiscard]] RegionAddress address_of(const std::byte* data, std::size_t bytes) const;
  // A whole region of any rank.
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
