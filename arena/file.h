// Small files in shared memory: made whole before they get their name, and mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace holdfast::arena {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

// A shared mapping, 2 MiB-aligned, so that the huge pages of a large file count.
class Mapping {
 public:
  enum class Access : std::uint8_t { kRead, kWrite };
  static Result<Mapping> map(const Descriptor& file, std::uint64_t bytes, Access access,
                             const std::string& path);
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  void keep_mapped() { base_ = nullptr; }  // For the life of the process.
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return base_ + offset; }
  template <class T>
  [[nodiscard]] T* as(std::uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

 private:
  Mapping(std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_;
  std::uint64_t bytes_;
};

// An existing file and its size. An invalid descriptor: there is none. Refuses what is not a plain
// file of this user.
struct Found {
  Descriptor file;
  std::uint64_t bytes = 0;
};
[[nodiscard]] Result<Found> find_file(const std::string& path, Mapping::Access access);

// A new file of zeros with all its memory taken (in huge pages where the kernel can), still under
// path + ".new"; missing directories are made. give_name() moves it to `path`, in place of what was
// there.
[[nodiscard]] Result<Mapping> make_file(const std::string& path, std::uint64_t bytes);
[[nodiscard]] Status give_name(const std::string& path);

// Reads as much of `into` as the file has; returns the number of bytes.
[[nodiscard]] std::size_t read_at(const Descriptor& file, std::uint64_t offset,
                                  std::span<std::byte> into);

}  // namespace holdfast::arena
