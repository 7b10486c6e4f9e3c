// `holdfast serve` of a wheel, which has no HTTP server in it.
#include <cstdio>

#include "apps/commands.h"

namespace holdfast::apps {

int serve(const ServeArguments& /*arguments*/) {
  std::fprintf(
      stderr,
      "holdfast: `serve` is not in this wheel: use that of a Holdfast which was built from "
      "its sources (`pip install .`), on any host that sees the job\n");
  return 2;
}

}  // namespace holdfast::apps
