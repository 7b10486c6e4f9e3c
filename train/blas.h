// Warns of a BLAS that is many times slower than others.
#pragma once
#include <string>

namespace holdfast::train {

// A sentence where this process multiplies matrices with the reference BLAS, which is many times
// slower than any other; empty elsewhere. libtorch built for Debian and Ubuntu takes whatever BLAS
// the system has selected; PyTorch's own brings a fast one within it.
std::string advice_on_blas();

}  // namespace holdfast::train
