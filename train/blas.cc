#include "train/blas.h"

#include <ATen/Context.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/text.h"

namespace holdfast::train {
namespace {

// Each of these is part of the path of some other BLAS.
constexpr std::string_view kOthers[] = {"openblas", "mkl", "blis", "atlas", "flexiblas", "armpl"};

}  // namespace

std::string reference_blas(std::string_view maps) {
  std::string found;
  while (!maps.empty()) {
    const auto end = std::min(maps.find('\n'), maps.size());
    const std::string_view line = maps.substr(0, end);
    maps.remove_prefix(std::min(end + 1, maps.size()));
    const auto slash = line.find('/');
    if (slash == std::string_view::npos) continue;
    const std::string_view path = line.substr(slash);
    const auto has = [&](std::string_view part) { return path.find(part) != path.npos; };
    if (std::any_of(std::begin(kOthers), std::end(kOthers), has)) return {};
    if (path.substr(path.rfind('/')).starts_with("/libblas.so")) found = path;
  }
  return found;
}

std::string slow_blas() {
  if (at::hasMKL()) return {};
  std::ifstream stream("/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(stream), {}};
  const std::string file = reference_blas(maps);
  if (file.empty()) return {};
  return cat("this program computes with the reference BLAS (", file,
             "), many times slower than it could: apt-get install libopenblas0-pthread");
}

}  // namespace holdfast::train
