#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace holdfast {

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "holdfast: %s:%d: assertion failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace holdfast
