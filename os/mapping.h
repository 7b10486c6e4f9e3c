// Mapping: a range of a file in this process's memory, shared with all who map the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "os/fd.h"

namespace holdfast::os {

inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

enum class Access : std::uint8_t { kRead, kWrite };

class [[nodiscard]] Mapping {
 public:
  Mapping() = default;
  // Bytes [offset, offset + bytes) of the file. An address in it has the same remainder by 2 MiB as
  // its offset, so the file's huge pages are huge here too. Empty if the kernel does not map them;
  // errno says why.
  static Mapping of(const Fd& file, std::uint64_t offset, std::uint64_t bytes, Access access);
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  explicit operator bool() const { return bytes_.data() != nullptr; }
  void keep_mapped() { bytes_ = {}; }  // Never unmaps it.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return bytes_.data() + offset; }
  template <class T>
  [[nodiscard]] T* as(std::uint64_t offset) const {
    return reinterpret_cast<T*>(at(offset));
  }

 private:
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

// Takes the memory for bytes [offset, offset + bytes) of a file on a tmpfs. Otherwise a write to
// its mapping may raise SIGBUS. Returns 0 or an error number: ENOSPC for a quota too.
[[nodiscard]] int take_memory(const Fd& file, std::uint64_t offset, std::uint64_t bytes);
// Gives the memory of whole pages back: they then read as zeros. False: the kernel refuses, and
// errno says why.
[[nodiscard]] bool drop_memory(const Fd& file, std::uint64_t offset, std::uint64_t bytes);

}  // namespace holdfast::os
