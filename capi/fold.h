// Folds rows of numbers, one per rank, into one, in rank order, for every type and operation.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "include/holdfast/c.h"

namespace holdfast::capi {

[[nodiscard]] bool is_known(hf_dtype dtype, hf_op op);
[[nodiscard]] std::size_t size_of(hf_dtype dtype);  // Of one element, in bytes.
[[nodiscard]] const char* name_of(hf_dtype dtype);
[[nodiscard]] const char* name_of(hf_op op);

// Why `op` means nothing for `dtype`: a clause; or nothing.
[[nodiscard]] std::optional<std::string> objection(hf_dtype dtype, hf_op op);

// to[i] = (row0[i] op row1[i]) op ...; row k begins at rows + k * stride bytes. HF_AVERAGE divides
// by `count_rows`. Small floats are folded as float and rounded once.
void fold(void* to, const std::byte* rows, std::size_t stride, std::size_t count_rows,
          std::size_t count, hf_dtype dtype, hf_op op);

// data[i] /= by; for the floats that a collective can add up by itself.
void divide(void* data, std::size_t count, hf_dtype dtype, std::size_t by);

}  // namespace holdfast::capi
