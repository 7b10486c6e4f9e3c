// DefaultFloatMode: while it lives, this thread's arithmetic rounds to nearest and keeps denormals.
// So bits do not depend on what a program has set, such as torch.set_flush_denormal(True).
#pragma once

#include <cfenv>

namespace holdfast::os {

class [[nodiscard]] DefaultFloatMode {
 public:
  DefaultFloatMode() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatMode() { std::fesetenv(&before_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  std::fenv_t before_{};
};

}  // namespace holdfast::os
