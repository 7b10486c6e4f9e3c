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

// Maps bytes [offset, offset + bytes) of the file, readable, writable and shared. Errors, which
// name `name`: the file is shorter, or the kernel does not map it. Within a process, two mappings
// of the same range of the same file are one. So in tests whose threads are ranks of one group, all
// have the same addresses, and the thread sanitizer sees their races.
Result<SharedMapping> map_shared(const os::Fd& file, const std::string& name, std::uint64_t offset,
                                 std::uint64_t bytes);

// Opens the file for reading and writing. Refuses a symbolic link.
Result<os::Fd> open_shared(const std::string& path);

}  // namespace holdfast::collective
