// SharedMapping: a range of a file in this process's memory, for as long as somebody holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "os/fd.h"
#include "os/mapping.h"

namespace holdfast::collective {

class SharedMapping {
 public:
  // Bytes [offset, offset + bytes) of the file, readable, writable and shared. `name` is for
  // errors: a file that is shorter than that, or that the kernel does not map. Within a process,
  // two mappings of the same range of the same file are one. So threads that are ranks of one group
  // see the same addresses, and the thread sanitizer sees what they do to each other.
  static Result<std::shared_ptr<SharedMapping>> of(const os::Fd& file, const std::string& name,
                                                   std::uint64_t offset, std::uint64_t bytes);
  static Result<std::shared_ptr<SharedMapping>> of(const std::string& path, std::uint64_t offset,
                                                   std::uint64_t bytes);
  [[nodiscard]] std::span<std::byte> bytes() const { return mapped_.bytes(); }

 private:
  explicit SharedMapping(os::Mapping mapped) : mapped_(std::move(mapped)) {}
  os::Mapping mapped_;
};

}  // namespace holdfast::collective
