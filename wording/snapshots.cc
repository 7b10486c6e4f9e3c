#include "wording/snapshots.h"

#include "base/text.h"

namespace holdfast::wording {
namespace {

using wire::Reason;
using Kind = Reason::Kind;

}  // namespace

std::string of_snapshot(const Reason& r) {
  const std::string who = r.rank != kNoRank ? cat("rank ", r.rank, ": ")
                          : r.host.empty()  ? ""
                                            : cat("host ", r.host, ": ");
  switch (r.kind) {
    case Kind::kFromSnapshot:
      return cat("begins again from the snapshot of step ", r.version, " (", r.detail, ")",
                 r.count == 0 ? ""
                              : cat(": ", counted(r.count, "step"), r.count == 1 ? " is" : " are",
                                    " made again"));
    case Kind::kSnapshotFailed:
      return cat("no snapshot of step ", r.version, ": ", who, r.detail,
                 ". The training goes on, and the next one is tried when it is due");
    case Kind::kSnapshotUnreadable:
      return cat("the snapshot of step ", r.version, " can not be used: ", who, r.detail);
    case Kind::kSnapshotFirst:
      return cat("signal ", r.count, ": makes a snapshot before it ends, within ", r.total,
                 " s (another signal ends this)");
    case Kind::kSnapshotMade:
      return cat("the snapshot of step ", r.version, " (", r.detail,
                 ") is on the disk: --resume goes on from it");
    case Kind::kSnapshotLacking:
      return cat("ends without a new snapshot: ", r.detail.empty() ? "it took too long" : r.detail);
    case Kind::kStopped:
      return "stopped, as `holdfast stop` has asked for";
    default:
      return {};
  }
}

}  // namespace holdfast::wording
