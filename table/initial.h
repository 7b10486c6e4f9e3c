// The values with which a row begins that nobody has written. The same (seed, table, key) gives the
// same bits on every machine, so it does not matter which server makes the row, and who asks first.
#pragma once

#include <cstdint>
#include <span>

#include "table/spec.h"

namespace holdfast::table {

class Beginning {
 public:
  explicit Beginning(const Spec& spec);

  // The values as a row of the table's type can hold them. Requires: values.size() ==
  // Spec::values.
  void fill(std::uint64_t key, std::span<float> values) const;

 private:
  Spec spec_;
  std::uint64_t seed_;  // Derived from the seed and the table's name.
};

// The standard normal's value below which a share `p` of it lies; 0 < p < 1. Relative error below
// 2e-9. Of additions, multiplications, divisions and square roots alone, so that its bits do not
// depend on a mathematical library.
[[nodiscard]] double normal_quantile(double p);

}  // namespace holdfast::table
