// RegisteredRows: the registered memory of all ranks of this host, mapped into this process.
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

  // Maps the files that Options::registered names. Error: a file can not be mapped.
  static Result<RegisteredRows> map(const Group::Options& options);
  // The offset of these bytes in this rank's registered memory; kOutside: they are not in it. For
  // zero bytes: 0, wherever `data` points.
  [[nodiscard]] std::uint64_t offset_of(const std::byte* data, std::size_t bytes) const;
};

}  // namespace holdfast::collective
