#include "wording/drills.h"

#include "base/text.h"

namespace holdfast::wording {
namespace {

using wire::Reason;
using Kind = Reason::Kind;

// What a drill does to a process, after "to".
std::string what_happens(wire::DrillKind kind, std::int64_t ms) {
  const std::string decimals = std::to_string(1000 + ms % 1000).substr(1);
  const std::string time = ms == 0 ? "for ever" : cat("for ", ms / 1000, '.', decimals, " s");
  switch (kind) {
    case wire::DrillKind::kKill:
      return "be killed (SIGKILL)";
    case wire::DrillKind::kStop:
      return "be stopped (SIGSTOP)";
    case wire::DrillKind::kHang:
      return cat("hang ", time);
    case wire::DrillKind::kSpin:
      return cat("spin ", time);
    case wire::DrillKind::kSlow:
      return cat("wait ", time, " in each step");
    case wire::DrillKind::kPage:
      return "lose a page of its memory";
    case wire::DrillKind::kFlip:
      return "have a bit flipped";
    case wire::DrillKind::kCut:
      return "lose its links to other hosts";
  }
  return "?";
}

// The beginning of a phase, after "when it".
const char* begins_with(Doing phase) {
  switch (phase) {
    case Doing::kBetween:
      return "is between two steps,";
    case Doing::kComputing:
      return "begins to compute";
    case Doing::kSumming:
      return "waits for the sums";
    case Doing::kStaging:
      return "writes the step down";
    case Doing::kCopying:
      return "passes on its private state";
    case Doing::kCommitting:
      return "comes to the commit barrier";
    case Doing::kUpdating:
      return "begins the update";
    case Doing::kRecovering:
      return "recovers";
    case Doing::kStarting:
    case Doing::kEnded:
      break;
  }
  return "?";
}

}  // namespace

std::string of_drill(const Reason& r) {
  switch (r.kind) {
    case Kind::kDrill:
      if (r.rank == kNoRank) {
        return cat("drill: host ", r.host, " is to ",
                   what_happens(static_cast<wire::DrillKind>(r.count), 0),
                   ": its launcher and all its processes, with ", counted(r.total, "rank"));
      }
      return cat("drill: rank ", r.rank, " (process ", r.pid, " on ", r.host, ") is to ",
                 what_happens(static_cast<wire::DrillKind>(r.count), r.total), " when it ",
                 begins_with(r.doing),
                 r.version == 0               ? " the next time"
                 : r.doing == Doing::kBetween ? cat(" before step ", r.version, " or a later one")
                                              : cat(" in step ", r.version, " or a later one"));
    case Kind::kNoDrills:
      return "this job takes no drills: start it with --allow-inject (docs/drills.md)";
    case Kind::kNoSuchRank:
      return cat("there is no rank ", r.rank, ": the job has ", counted(r.total, "rank"));
    case Kind::kNotTraining:
      if (r.rank == kNoRank) return "the job has ended";
      return cat("rank ", r.rank,
                 " does not train with Holdfast now: the job has not begun, its process is being "
                 "replaced, its training has ended, or its program never calls init()");
    case Kind::kNoHost:
      return cat("there is no host ", r.host, ": the job has ", r.detail);
    case Kind::kOnlyHost:
      return cat("host ", r.host, " is the only one of the job: nobody would go on");
    case Kind::kSchedulersHost:
      return cat("host ", r.host,
                 " has the scheduler, without which nobody goes on (but in a job with etcd; that "
                 "is to be tried by hand)");
    case Kind::kNotForHosts:
      return "a whole host can only be killed or stopped; all else is for a rank (--rank)";
    case Kind::kAlone:
      return cat("rank ", r.rank,
                 " is alone: no other rank holds what it holds, so nobody would find the flipped "
                 "bit");
    case Kind::kNoLinks:
      return cat("rank ", r.rank, " has no links: the job runs on one host");
    case Kind::kStepIsMade:
      return cat("rank ", r.rank, " has made step ", r.version, " already; it is at step ",
                 r.count);
    default:
      return {};
  }
}

}  // namespace holdfast::wording
