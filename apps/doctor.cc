// `holdfast doctor`.
#include <cstdio>

#include "apps/commands.h"
#include "apps/doctor/findings.h"
#include "apps/doctor/host.h"
#include "base/text.h"

namespace holdfast::apps {

int examine_host(std::uint16_t port, const char* const* environment) {
  int code = 0;
  for (const auto& one : doctor::judge(doctor::look(port, environment))) {
    const bool is_bad = one.level == doctor::Level::kBad;
    if (is_bad) code = 1;
    std::printf("%s  %s\n",
                is_bad                              ? "BAD "
                : one.level == doctor::Level::kNote ? "note"
                                                    : "ok  ",
                printable(one.what).c_str());
    if (!one.advice.empty()) std::printf("      %s\n", one.advice.c_str());
  }
  return code;
}

}  // namespace holdfast::apps
