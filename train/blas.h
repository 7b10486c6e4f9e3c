// Finds out which BLAS the process computes with. Debian's libtorch takes whichever is installed.
// The reference BLAS, which always is, is many times slower than the others.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::train {

// The path of the reference BLAS in `maps`, the text of /proc/self/maps. Empty if it is not mapped,
// or if another BLAS is.
[[nodiscard]] std::string reference_blas(std::string_view maps);

// If this process computes with the reference BLAS: one sentence that says what to do. Else empty.
[[nodiscard]] std::string slow_blas();

}  // namespace holdfast::train
