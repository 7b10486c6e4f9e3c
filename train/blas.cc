#include "train/blas.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace holdfast::train {

std::string advice_on_blas() {
  void* const multiply = ::dlsym(RTLD_DEFAULT, "sgemm_");
  Dl_info library{};
  if (multiply == nullptr || ::dladdr(multiply, &library) == 0) return {};
  std::error_code error;
  // Debian keeps each BLAS in a folder of its name, and links the selected one into the usual
  // place.
  const auto file = std::filesystem::canonical(library.dli_fname, error);
  if (error || file.parent_path().filename() != "blas") return {};
  return "libtorch multiplies matrices with the reference BLAS here (" + file.string() +
         "), which is many times slower than OpenBLAS: install libopenblas0-pthread, or select it "
         "with update-alternatives";
}

}  // namespace holdfast::train
