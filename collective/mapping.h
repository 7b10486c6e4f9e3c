// Mapping: a range of a file in this process's memory, for as long as somebody holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace holdfast::collective {

// A file descriptor that closes itself.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

// The memory for bytes [offset, offset + bytes) of a file on a tmpfs, without which a write to its
// mapping is SIGBUS. 0; or ENOSPC, where a quota is the reason too; or another error number.
[[nodiscard]] int take_memory(const File& file, std::uint64_t offset, std::uint64_t bytes);

class Mapping {
 public:
  // Bytes [offset, offset + bytes) of the file, readable, writable and shared. `name` is for
  // errors: a file that is shorter than that, or that the kernel does not map. Two mappings of the
  // same range of the same file within a process are one: threads that are ranks of one group see
  // the same addresses, and the thread sanitizer sees what they do to each other.
  static Result<std::shared_ptr<Mapping>> of(const File& file, const std::string& name,
                                             std::uint64_t offset, std::uint64_t bytes);
  static Result<std::shared_ptr<Mapping>> of(const std::string& path, std::uint64_t offset,
                                             std::uint64_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  Mapping(void* base, std::size_t length, std::span<std::byte> bytes)
      : base_(base), length_(length), bytes_(bytes) {}
  void* base_;  // Page-aligned, at or before bytes_.
  std::size_t length_;
  std::span<std::byte> bytes_;
};

// "Permission denied", for a sentence; of errno.
[[nodiscard]] std::string last_system_error();

}  // namespace holdfast::collective
