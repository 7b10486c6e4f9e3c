// `holdfast inject`.
#include <algorithm>
#include <cmath>
#include <string>

#include "apps/ask.h"
#include "apps/commands.h"
#include "base/text.h"
#include "os/random_bits.h"
#include "wording/drills.h"

namespace holdfast::apps {
namespace {

constexpr double kMostDrilled = 86400;

template <class List>
auto find(const List& list, std::string_view name) {
  return std::find_if(list.begin(), list.end(), [&](const auto& one) { return one.first == name; });
}

template <class List>
std::string names_of(const List& list) {
  std::string all;
  for (const auto& [name, value] : list) all += cat(all.empty() ? "" : ", ", name);
  return all;
}

// A bit that is flipped when a step has used it is found before the next step does.
std::string_view usual_phase(wire::DrillKind kind) {
  return kind == wire::DrillKind::kFlip ? "stage" : "compute";
}

bool takes_time(wire::DrillKind kind) {
  return kind == wire::DrillKind::kHang || kind == wire::DrillKind::kSpin ||
         kind == wire::DrillKind::kSlow;
}

Result<wire::Drill> drill_of(const InjectArguments& a) {
  const auto kind = find(wording::kDrillKinds, a.kind);
  if (kind == wording::kDrillKinds.end()) {
    return Error{Blame::kUser, cat("what should happen is '", a.kind, "'; there are ",
                                   names_of(wording::kDrillKinds))};
  }
  if (!a.host.empty()) return wire::Drill{.kind = kind->second, .host = a.host};
  if (a.rank < 0) return Error{Blame::kUser, "say to whom: --rank R, or --host NAME"};
  const auto phase = find(wording::kDrillPhases,
                          a.phase.empty() ? usual_phase(kind->second) : std::string_view(a.phase));
  if (phase == wording::kDrillPhases.end()) {
    return Error{Blame::kUser,
                 cat("--phase is '", a.phase, "'; there are ", names_of(wording::kDrillPhases))};
  }
  const double seconds = a.seconds.value_or(0);
  if (!std::isfinite(seconds) || seconds < 0 || seconds > kMostDrilled) {
    return Error{Blame::kUser, "--for is a number of seconds, 86400 at most"};
  }
  const auto ms = static_cast<std::uint32_t>(std::lround(seconds * 1000));
  if (a.seconds && !takes_time(kind->second)) {
    return Error{Blame::kUser, cat("--for has no meaning for ", a.kind)};
  }
  if (ms == 0 && (a.seconds || kind->second == wire::DrillKind::kSlow)) {
    return Error{Blame::kUser, kind->second == wire::DrillKind::kSlow
                                   ? "slow needs --for: by how many seconds each step is slower, "
                                     "0.001 at least"
                                   : "--for is 0.001 s at least"};
  }
  return wire::Drill{.rank = a.rank,
                     .kind = kind->second,
                     .phase = phase->second,
                     .at_step = static_cast<Version>(a.at_step),
                     .for_ms = ms,
                     .seed = os::random_bits()};
}

}  // namespace

int inject(const InjectArguments& arguments) {
  const auto drill = drill_of(arguments);
  if (!drill) return complain(drill.error().what, 2);
  return give_order<wire::Drilled>(arguments.job, *drill, wire::Reason::Kind::kDrill);
}

}  // namespace holdfast::apps
