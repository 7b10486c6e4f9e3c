#include "wording/hosts.h"

#include <cstdio>

#include "base/text.h"

namespace holdfast::wording {
namespace {

std::string size_in_words(std::uint64_t bytes) {
  if (bytes < 10'000) return cat(bytes, " bytes");
  const bool mega = bytes >= 10'000'000;
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.1f %s", static_cast<double>(bytes) / (mega ? 1e6 : 1e3),
                      mega ? "MB" : "KB");
  return text;
}

}  // namespace

std::string in_words(Cover cover, std::uint64_t bytes) {
  switch (cover) {
    case Cover::kNothingOwn:
      return "a lost host takes no state along: all of it is on the other hosts too";
    case Cover::kHeld:
      return cat("a lost host takes no state along: what only this rank has (up to ",
                 size_in_words(bytes),
                 ", its private state) goes to a rank of another host in every step");
    case Cover::kNotHeld:
      return cat("a lost host ends this job: what only its ranks have (of this one up to ",
                 size_in_words(bytes),
                 ", its private state) is on no other host, since HOLDFAST_REPLICAS is 0");
    case Cover::kOneHost:
      return cat("all ranks are on one host now, and its loss would end this job: what only they ",
                 "have (of this one up to ", size_in_words(bytes),
                 ", its private state) is nowhere else");
    case Cover::kRowsHeld:
      return "a lost host takes no rows along: from the next step on, what each parameter server "
             "has "
             "is on the host of another one, too";
    case Cover::kRowsNotHeld:
      return "a lost host ends this job if it has a parameter server: what that has is on no other "
             "host. For that, servers have to be on hosts that do not fail together "
             "(HOLDFAST_DOMAIN), and HOLDFAST_REPLICAS must not be 0";
  }
  return {};
}

}  // namespace holdfast::wording
