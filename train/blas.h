// Which BLAS the process computes with. Debian's libtorch takes whichever there is, and the one
// that is always there, the reference BLAS, is many times slower than the others.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::train {

// The file of the reference BLAS among what is mapped (the text of /proc/self/maps); empty if it is
// not there, or another BLAS is.
[[nodiscard]] std::string reference_blas(std::string_view maps);

// One sentence, which says what to do, if this process computes with the reference BLAS, else
// empty.
[[nodiscard]] std::string slow_blas();

}  // namespace holdfast::train
