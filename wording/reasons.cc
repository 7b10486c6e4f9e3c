#include "wording/reasons.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/text.h"
#include "os/spawn.h"
#include "wire/formation.h"
#include "wire/messages.h"
#include "wire/peer.h"
#include "wording/drills.h"
#include "wording/snapshots.h"

namespace holdfast::wording {
namespace {

using wire::Awaited;
using wire::Ending;
using wire::Reason;
using Kind = Reason::Kind;

std::string process(const std::string& node_id) {
  if (node_id.empty()) return "a process";
  return node_id == "scheduler" ? "the scheduler" : cat("worker ", node_id);
}

std::string rank_lost(const Reason& r) {
  return cat("rank ", r.rank, " (process ", r.pid, ") ", in_words(r.ending));
}

std::string name_awaited(const Awaited& a) {
  switch (a.kind) {
    case Awaited::Kind::kIsHere:
      return cat("node '", a.node_id, "' is here");
    case Awaited::Kind::kNotReplaced:
      return cat("rank ", a.rank, " ", in_words(a.ending), " and no process has taken its place");
    case Awaited::Kind::kNotReported:
      return cat("rank ", a.rank, " (process ", a.pid, ") lives but has not reported");
    case Awaited::Kind::kNotRepaired:
      return cat("rank ", a.rank, " (process ", a.pid, ") has not repaired its state");
  }
  return "?";
}

std::string awaited(const Reason& r) {
  std::string text;
  for (const auto& a : r.awaited) text += (text.empty() ? "" : "; ") + name_awaited(a);
  return text;
}

// Names the workers that never came. That is possible only if all that came have numbers below
// `total` as node ids, so that the missing numbers are the rest.
std::string never_came(const Reason& r) {
  constexpr int kMostNamed = 10;
  std::set<std::string> here;
  for (const auto& a : r.awaited) here.insert(a.node_id);
  std::string text;
  std::int64_t missing = 0;
  for (std::int64_t rank = 0; rank < r.total; ++rank) {
    if (here.erase(std::to_string(rank)) != 0 || ++missing > kMostNamed) continue;
    text += cat(missing == 1 ? "node '" : "', '", rank);
  }
  if (!here.empty() || missing != r.total - r.count) return "the others never registered";
  const std::string more = missing > kMostNamed ? cat(" and ", missing - kMostNamed, " more") : "";
  return cat(text, "'", more, " never registered");
}

std::string too_few_came(const Reason& r) {
  return cat("only ", r.count, " of ", counted(r.total, "worker"),
             " came within the time limit (MS_TOPO_TIMEOUT): ",
             r.awaited.empty() ? "none is here" : cat(awaited(r), "; ", never_came(r)));
}

std::string other_host(const Reason& r) {
  const bool same_name = r.other_host == r.host;
  return cat(
      "node '", r.node_id, "' is on host ", r.host, ", but node '", r.other, "' is or was on ",
      same_name ? "another host or container of that name" : "host ", same_name ? "" : r.other_host,
      ", and they can not reach each other by the network: give all processes a MS_SCHED_HOST "
      "that every host reaches (not 127.0.0.1), or start them all on one host, with one "
      "/dev/shm and one process namespace (docker: --ipc and --pid)");
}

std::string holder(const Reason& r) {
  return cat("process ", r.pid, r.host.empty() ? "" : " on ", r.host);
}

// The seconds are no promise that the wait ends then: a living process renews its lease.
std::string leased(const Reason& r) {
  return cat(holder(r), " has the place of rank ", r.rank,
             ": another one waits until that process has died, is silent for ", r.count,
             " s more (MS_NODE_TIMEOUT), or the job ends");
}

std::string not_its_word(const Reason& r) {
  const auto kind = static_cast<std::size_t>(r.count - 1);
  return cat("a connection of kind '", wire::name(static_cast<wire::PeerKind>(r.total)),
             "' may not say ", kind < wire::kMessageNames.size() ? wire::kMessageNames[kind] : "?");
}

std::string has_ended(Rank rank) {
  return cat("rank ", rank, " has ended its training already");
}

std::string too_often(const Reason& r) {
  return cat(process(r.node_id), " ", in_words(r.ending), " for the ", ordinal(r.version),
             " time without a step made in between (", r.detail, "=", r.total, ")");
}

std::string twice(const Reason& r) {
  const std::string where = r.version == kNoVersion || r.version == 0
                                ? "before its first step"
                                : cat("after step ", r.version);
  return cat(process(r.node_id), " ", in_words(r.ending), " twice ", where,
             " with the same exception: ", r.detail);
}

std::string ranks(std::int64_t count) {
  return count == 1 ? "1 rank" : cat(count, " ranks");
}

std::string places(std::int64_t count) {
  return count == 1 ? "1 place" : cat(count, " places");
}

std::string of_pause(const Reason& r) {
  switch (r.kind) {
    case Kind::kPaused:
      return cat(r.count == 0 ? "paused by order after step " : "is paused already, after step ",
                 r.version, ": `holdfast resume` goes on");
    case Kind::kPausing:
      return "the job is to pause, but its step under way takes longer: it stands still at its end "
             "(`holdfast pause` waits for that again)";
    case Kind::kUnpaused:
      return r.count == 0 ? "goes on by order" : "the job is not paused";
    default:
      return {};
  }
}

std::string of_formation(const Reason& r) {
  switch (r.kind) {
    case Kind::kJobStarts:
      return "the job starts";
    case Kind::kSchedulerRestarted:
      return "the scheduler was started again in mid-recovery";
    case Kind::kRankLost:
      return rank_lost(r);
    case Kind::kRankCameBack:
      return cat("rank ", r.rank, " came back");
    case Kind::kGoOn:
      return cat("all ranks go on from version ", r.version);
    case Kind::kBeginAtZero:
      return "no rank holds a version yet: rank 0's initial state is version 0";
    case Kind::kAssembling:
      return cat(r.count, " of ", r.total,
                 r.detail.empty() ? " workers are here" : " workers and servers are here");
    case Kind::kRankHasEnded:
      return has_ended(r.rank);
    case Kind::kLeased:
      return leased(r);
    default:
      return {};
  }
}

std::string of_moves(const Reason& r) {
  switch (r.kind) {
    case Kind::kMoves:
      if (r.count == 0) return cat("host ", r.host, " is drained: it had no ranks");
      return cat(ranks(r.count), " of host ", r.host, " move to host ", r.other_host);
    case Kind::kNoSuchHost:
      return cat("no rank of the job is on a host called '", r.host,
                 "': `holdfast status` shows the hosts");
    case Kind::kNobodyTakes:
      return cat(
          r.other_host.empty() ? "no other host"
                               : cat("host ", r.other_host, ", if it is of the job, does not"),
          r.other_host.empty() ? " would take the " : " take the ", ranks(r.count), " of host ",
          r.host, ": it takes a spare host of that size, or one with --oversubscribe");
    case Kind::kNotHeld:
      return cat("the state of rank ", r.rank,
                 " is on no other host, so its host is needed (see HOLDFAST_REPLICAS)");
    case Kind::kNotNow:
      return cat("the ranks of host ", r.host,
                 " can not move now: the job has not begun, or another move is under way. Try "
                 "again");
    case Kind::kGivenAway:
      return cat("another host has ", places(r.count), " of this one by now; this host ",
                 r.total == 0 ? "waits as a spare host" : cat("goes on with ", places(r.total)));
    case Kind::kHostLost:
      if (!r.other_host.empty()) {
        return cat("host ", r.host, " is lost with ", ranks(r.count), "; host ", r.other_host,
                   " takes over");
      }
      return cat("host ", r.host, " is lost with ", ranks(r.count),
                 ", and no other host takes over: the job waits (at most "
                 "HOLDFAST_REPLACEMENT_TIMEOUT). Start that host's command again, there or "
                 "elsewhere");
    case Kind::kDrained:
      return cat("this host is drained: other hosts have its ", places(r.count),
                 ", and nothing more is started here");
    default:
      return {};
  }
}

// The sender of a message that can not be read.
std::string sender_of(const Reason& r) {
  const std::string who = !r.node_id.empty() ? cat("node '", r.node_id, '\'')
                          : !r.other.empty() ? cat("agent ", r.other)
                                             : "";
  if (who.empty()) return {};
  return cat("what ", who, r.host.empty() ? "" : cat(" on ", r.host), " says can not be read: ");
}

std::string of_refusal(const Reason& r) {
  switch (r.kind) {
    case Kind::kOtherProtocol:
      return cat("this process speaks protocol ", r.count, " and the scheduler ", r.total,
                 ": start all processes with the same release of Holdfast");
    case Kind::kOtherJob:
      return cat("the scheduler at this address serves job '", r.detail, "', not '", r.other,
                 "': give every job its own port");
    case Kind::kPlacesTaken:
      if (r.total == 0) {
        return cat("the job has no parameter servers, and '", r.node_id,
                   "' is one: give all its processes the same MS_SERVER_NUM");
      }
      return cat(all_of(r.total, r.detail.empty() ? "place" : "place of a server"), " of the job ",
                 r.total == 1 ? "is taken and is not called '" : "are taken and none is called '",
                 r.node_id, "': this ",
                 r.detail.empty() ? "worker is one too many (see MS_WORKER_NUM, MS_NODE_ID)"
                                  : "server is one too many (see MS_SERVER_NUM, MS_NODE_ID)");
    case Kind::kNodeTaken:
      if (!r.other.empty()) {
        return cat("node ids '", r.other, "' and '", r.node_id,
                   "' are two names of one rank, and '", r.other,
                   "' is registered: give every worker its own MS_NODE_ID");
      }
      return cat(r.pid == 0 ? "another living process" : holder(r), " is registered as node '",
                 r.node_id, "': give every worker its own MS_NODE_ID");
    case Kind::kOtherHost:
      return other_host(r);
    case Kind::kNoRoom:
      return cat("the job's key-values may have ", r.count >> 20, " MiB and ", r.total,
                 " keys in all, and there is no room for this one");
    case Kind::kNotItsWord:
      return not_its_word(r);
    case Kind::kTwoProcesses:
      return cat("this connection is that of node '", r.node_id, "': another process, node '",
                 r.other, "', can not be registered on it");
    case Kind::kNotItsPlace:
      return cat("another agent, ", r.other, " on ", r.other_host, ", has node '", r.node_id,
                 "': this one waits, in case that one is lost. Else give every agent places of its "
                 "own (--node_rank)");
    case Kind::kNotGiven:
      return cat("the agent of node '", r.node_id,
                 "' has not given that place to this process, as ", "attempt ", r.count);
    case Kind::kNotThatWorker:
      return cat("a process on host ", r.host, " says that it is the process of node '", r.node_id,
                 "', which is on host ", r.other_host);
    case Kind::kImpossible:
      return cat("rank ", r.rank, " (process ", r.pid, ") says that it holds version ", r.version,
                 ", which can not be: the others hold version ", r.count);
    case Kind::kTooMuch:
      return cat("this connection would have the scheduler keep ", r.count, ' ', r.detail,
                 "; at most are ", r.total);
    case Kind::kUnreadable:
      return cat(sender_of(r), r.detail);
    case Kind::kNewerProcess:
      return cat("rank ", r.rank, " has been given to a newer process");
    case Kind::kRefusedAsBefore:
      return r.detail;
    case Kind::kReplacedSilent:
      return cat(
          "this process was silent for longer than its lease and has been replaced: ",
          r.pid != 0 ? cat(holder(r), " has the place of rank ", r.rank) : has_ended(r.rank));
    default:
      return {};
  }
}

// What is lost though nobody has died: connections between hosts, or pages of memory.
std::string of_losses(const Reason& r) {
  switch (r.kind) {
    case Kind::kGroupLost:
      return cat("rank ", r.rank,
                 " has lost its connections to other hosts, though nobody has "
                 "died: the group forms anew");
    case Kind::kGroupLostTooOften:
      return cat("the connections between hosts were lost ", r.count,
                 " times without a step in "
                 "between, the last time those of rank ",
                 r.rank,
                 ", though nobody has died: check "
                 "the network between the hosts, and firewalls that close connections");
    case Kind::kPagesLost:
      return r.rank == kNoRank
                 ? cat("memory errors have taken ", counted(r.count, "page"),
                       ", and this process trains alone: no other rank has what was in them")
                 : cat("rank ", r.rank, " (process ", r.pid, " on ", r.host,
                       "): memory errors have taken ", counted(r.count, "page"),
                       " that it trains with. ",
                       !r.detail.empty() ? r.detail
                                         : "The step under way is made again, and what the state "
                                           "had in them is fetched from another rank");
    case Kind::kDamaged:
      return cat("what came to rank ", r.rank, " (process ", r.pid, " on ", r.host, ") from rank ",
                 r.count, " (", r.other_host,
                 ") is not what was sent: its digest is wrong. What was under way is done again. "
                 "Either it was damaged on the way, or the program changed memory that it was "
                 "sending. If that comes again, a network adapter or a memory may be faulty");
    case Kind::kPagesLostTooOften:
      return cat("memory errors have taken pages of rank ", r.rank, " ", r.count,
                 " times without a step in between: take host ", r.host, " out of the job");
    default:
      return {};
  }
}

std::string of_end(const Reason& r) {
  switch (r.kind) {
    case Kind::kAllEnded:
      return cat(all_of(r.total, "rank"), r.total == 1 ? " has" : " have", " ended in good order");
    case Kind::kNobodyAsked:
      return cat(all_of(r.total, "worker"), r.total == 1 ? " has" : " have",
                 " ended (exit code 0) and ", r.total == 1 ? "has not" : "none has",
                 " asked for a rank");
    case Kind::kTooFewCame:
      return too_few_came(r);
    case Kind::kNotFormedInTime:
      return cat("the group could not be formed again within the time limit: ", awaited(r));
    case Kind::kEndedWithoutTraining:
      return cat("rank ", r.rank, " has ended without training, but others want to train with it");
    case Kind::kEndedEarly:
      return cat("rank ", r.rank, " ended (exit code 0) after step ", r.version,
                 " without ending its training");
    case Kind::kNoPlan:
      return cat(
          "the state can not be recovered: it was at step ", r.version, ", and ",
          r.rank == kNoRank ? "the arenas of all ranks are gone, so no copy of it is left"
                            : cat("no copy of the private part of rank ", r.rank, " is left"),
          ": start the job again; it goes on from a snapshot (--resume), or from the newest "
          "checkpoint that the program itself has saved and loads, or else from the beginning");
    case Kind::kSchedulerInterrupted:
      return cat("the scheduler was interrupted by signal ", r.count);
    case Kind::kTooOften:
      return too_often(r);
    case Kind::kTwice:
      return twice(r);
    case Kind::kInterrupted:
      return cat("interrupted by signal ", r.count);
    case Kind::kNotStarted:
      return r.count > 1 ? cat(r.detail, " (", r.count, " times on end)") : r.detail;
    case Kind::kProcessEnded:
      return cat(process(r.node_id), " ", in_words(r.ending),
                 r.detail.empty() ? "" : cat(" (", r.detail, ")"));
    case Kind::kSparesGivenUp:
      return cat("a spare ", in_words(r.ending), " for the ",
                 ordinal(static_cast<std::uint64_t>(r.count)), " time; no further one is started");
    case Kind::kSpareNotStarted:
      return cat("a spare could not be started: ", r.detail);
    case Kind::kSchedulerLeft:
      return "the scheduler's process ended with exit code 0 but workers still run: does the "
             "program call holdfast::init() before anything else?";
    default:
      return {};
  }
}

std::string of_rehearsal(const Reason& r) {
  const std::string dot = r.detail.ends_with('.') ? "" : ".";
  const std::string details = cat(dot, " Details: ", r.other, " (docs/rehearsals.md)");
  switch (r.kind) {
    case Kind::kRehearsalDiffers:
      return cat("rank ", r.node_id, " was rehearsed at step ", r.version,
                 ": a replacement of it would go on with other bits than the rank itself. What "
                 "differs first: ",
                 r.detail, details);
    case Kind::kRehearsalUncertain:
      return cat("rank ", r.node_id, " was rehearsed twice at step ", r.version,
                 ", and the two differ from each other: something changes from process to process "
                 "(threads in the arithmetic, the time, a process number). Unless it is only "
                 "logged, a replacement's bits are a matter of chance. What differs first: ",
                 r.detail, details);
    case Kind::kRehearsalSkipped:
      return cat("rank ", r.node_id, " was not audited: ", r.detail);
    case Kind::kRehearsalWrong:
      return cat(
          "rank ", r.node_id, " came to something else in step ", r.version,
          " than two other processes from the same state, and to the same in later steps: its "
          "processor or memory gave a wrong result, which the sum has spread to all ranks, or "
          "the program keeps something outside of State that counts in some steps only. What "
          "differed first: ",
          r.detail, details);
    default:
      return {};
  }
}

// Where in its training the rank is.
std::string whereabouts(const Reason& r) {
  const std::string step = cat("step ", r.version + 1);
  switch (r.doing) {
    case Doing::kBetween:
      return cat("it is before ", step, ", outside of steps (data, an evaluation, a checkpoint)");
    case Doing::kComputing:
      return cat("it is in ", step,
                 ", in the program's part of it (forward, backward, an exchange)");
    case Doing::kSumming:
      return cat("it is at the sums of ", step);
    case Doing::kStaging:
      return cat("it writes down ", step);
    case Doing::kCopying:
      return cat("it passes on its private state of ", step);
    case Doing::kCommitting:
      return cat("it is at the commit barrier of ", step);
    case Doing::kUpdating:
      return cat("it is at the update of ", step);
    case Doing::kStarting:
    case Doing::kRecovering:
    case Doing::kEnded:
      return "it does not train now";
  }
  return "?";
}

std::string holds_up(const Reason& r) {
  const std::int64_t tenths = r.count / 100;
  const std::string seconds = cat(tenths / 10, ".", tenths % 10, " s; ");
  const std::string what =
      r.total < 0    ? cat("has made no step for ", seconds)
      : r.total == 0 ? cat("waits in an exchange of some ranks, as all others do, for ", seconds)
                     : cat("holds up the job: ", counted(r.total, "rank"),
                           r.total == 1 ? " has" : " have", " waited for it for ", seconds);
  return cat("rank ", r.rank, " (process ", r.pid, " on ", r.host, ") ", what, whereabouts(r), ".",
             r.detail.empty() ? "" : cat(" ", r.detail),
             r.other.empty() ? "" : cat(" It is ended and replaced after ", r.other, " s."));
}

// "45.2 ms"
std::string milliseconds(std::int64_t us) {
  return cat(us / 1000, '.', us % 1000 / 100, " ms");
}

std::string slow(const Reason& r) {
  const std::string who = r.rank == kNoRank ? cat("all ranks of host ", r.host, " are slow: their")
                                            : cat("rank ", r.rank, " (process ", r.pid, " on ",
                                                  r.host, ") is slow: its");
  const std::int64_t tenths = 10 * r.count / std::max<std::int64_t>(r.total, 1);
  return cat(who, " own part of a step takes ", milliseconds(r.count), ", that of the others ",
             milliseconds(r.total), " (", tenths / 10, '.', tenths % 10,
             " times as long), and all others wait for it. Most of the difference is ",
             r.doing == Doing::kBetween ? "between two steps (data, an evaluation, a checkpoint)"
                                        : "in the step itself (forward, backward, update)");
}

std::string of_training(const Reason& r) {
  switch (r.kind) {
    case Kind::kUnprotected:
      return cat("no recovery from a fault after step ", r.version,
                 ": HOLDFAST_PROTECT is 0, so no step is kept that could be gone back to; start ",
                 "the job again without it");
    case Kind::kNotRepaired:
      return cat("rank ", r.rank, " could not be brought to version ", r.version, " (",
                 wire::name(static_cast<wire::Act>(r.count)),
                 "): ", r.detail.empty() ? "its arena holds another" : r.detail);
    case Kind::kWrongVersion:
      return cat("this rank holds version ", r.version, " but was told to go on from ", r.count,
                 "; this is an error in Holdfast");
    case Kind::kTooManyRemarks:
      return "this job has more remarks than are passed on: all further ones are left out, and no "
             "drill is ordered any more";
    case Kind::kNoCause:
      return "the collectives were ended, but the scheduler told of no fault";
    case Kind::kReplicas:
    case Kind::kProgram:
    case Kind::kNotFormed:
    case Kind::kNotTheSame:
    case Kind::kOutOfReach:
      return r.detail;
    default:
      return {};
  }
}

}  // namespace

std::string in_words(const Ending& ending) {
  switch (ending.kind) {
    case Ending::Kind::kUnknown:
      return "died";
    case Ending::Kind::kExited:
      return os::describe({.code = ending.code, .signal = 0});
    case Ending::Kind::kSignalled:
      return os::describe({.code = 0, .signal = ending.code});
    case Ending::Kind::kWasStopped:
      return "was stopped by a signal and ended by its agent";
    case Ending::Kind::kWasSilent:
      return "was ended by its agent: nothing was heard from it for longer than its lease "
             "(MS_NODE_TIMEOUT)";
    case Ending::Kind::kGone:
      return "is gone from its host";
    case Ending::Kind::kReplaced:
      return "was replaced";
    case Ending::Kind::kNotHeard:
      return "was not heard of for longer than its lease";
    case Ending::Kind::kWasHung:
      return "was ended by its agent: the others waited for it for longer than "
             "HOLDFAST_HANG_TIMEOUT";
  }
  return "?";
}

std::string seen_by(const Reason& cause) {
  switch (cause.kind) {
    case Kind::kRankLost:
      break;
    case Kind::kRankCameBack:
      return cat("the new process of rank ", cause.rank, ", which asked for its place");
    case Kind::kGroupLost:
      return cat("rank ", cause.rank, ", by the end of a connection to another host");
    case Kind::kPagesLost:
      return cat("rank ", cause.rank, " itself, by SIGBUS");
    case Kind::kSchedulerRestarted:
      return "the scheduler that took over";
    case Kind::kMoves:
      return {};
    case Kind::kImpossible:
      return "the scheduler, by what the rank said";
    case Kind::kSnapshotUnreadable:
      return cat("rank ", cause.rank, ", when it was to load it");
    default:
      return "the scheduler";
  }
  switch (cause.ending.kind) {
    case Ending::Kind::kGone:
      return "the scheduler, by the list of its host's processes";
    case Ending::Kind::kNotHeard:
      return "the scheduler, by the silence of the process or of its host, or because the host's "
             "kernel refuses its connections";
    case Ending::Kind::kWasHung:
      return "the scheduler, by how long the others waited";
    case Ending::Kind::kWasSilent:
      return "the scheduler, by its silence";
    case Ending::Kind::kReplaced:
      return "the agent that has its place";
    default:
      return "the agent of its host";
  }
}

std::string in_words(const Reason& reason) {
  // Each kind is worded by one of these.
  std::string text = of_formation(reason);
  if (text.empty()) text = of_refusal(reason);
  if (text.empty()) text = of_losses(reason);
  if (text.empty()) text = of_end(reason);
  if (!text.empty()) return text;
  if (reason.kind == Kind::kHoldsUp) return holds_up(reason);
  if (reason.kind == Kind::kSlow) return slow(reason);
  text = of_rehearsal(reason);
  if (text.empty()) text = of_moves(reason);
  if (text.empty()) text = of_drill(reason);
  if (text.empty()) text = of_snapshot(reason);
  if (text.empty()) text = of_pause(reason);
  if (!text.empty()) return text;
  text = of_training(reason);
  // Its sentence names the rank.
  const bool named = reason.kind == Kind::kNotRepaired || reason.kind == Kind::kReplicas;
  return reason.rank == kNoRank || named ? text : cat("rank ", reason.rank, ": ", text);
}

}  // namespace holdfast::wording
