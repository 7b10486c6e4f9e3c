// SharedMapping: a range of a file in this process's memory, for as long as somebody holds it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "os/fd.h"
#include "os/mapping.h"

namespace holdfast::collective {

using SharedMapping = std::shared_ptr<const os::Mapping>;

// Bytes [offset, offset + bytes) of the file, readable, writable and shared. `name` is for errors:
// a file that is shorter than that, or that the kernel does not map. Within a process, two mappings
// of the same range of the same file are one. So threads that are ranks of one group see the same
// addresses, and the thread sanitizer sees what they do to each other.
Result<SharedMapping> map_shared(const os::Fd& file, const std::string& name, std::uint64_t offset,
                                 std::uint64_t bytes);

// The file of that path, to be read and written; never one that a link names.
Result<os::Fd> open_shared(const std::string& path);

}  // namespace holdfast::collective
