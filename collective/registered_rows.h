// RegisteredRows: the registered memory of all ranks of a host, in this process's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "collective/group.h"
#include "collective/shared_mapping.h"

namespace holdfast::collective {

struct RegisteredRows {
  static constexpr std::uint64_t kOutside = ~std::uint64_t{0};

  std::vector<SharedMapping> mappings;
  std::vector<std::byte*> rows;  // By rank; empty: there is none.
  std::span<std::byte> own;

  // Maps the files that Options::registered names. Errors: one that can not be mapped.
  static Result<RegisteredRows> map(const Group::Options& options);
  // Where in this rank's own these bytes lie; kOutside: nowhere. No bytes lie at 0.
  [[nodiscard]] std::uint64_t offset_of(const std::byte* data, std::size_t bytes) const;
};

}  // namespace holdfast::collective
