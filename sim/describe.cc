#include "sim/describe.h"

#include "base/text.h"
#include "sim/words.h"
#include "wire/codec.h"

namespace holdfast::sim {
namespace {

using Kind = Transition::Kind;

}  // namespace

// Says in words what the worker's training thread does next.
std::string Narrator::what_is_next(const Worker& worker) {
  if (worker.program == Program::kExchanging) return "has waited for an exchange for too long";
  if (worker.program == Program::kOpening) return "opens its arena";
  if (worker.work.empty()) return "has waited for too long";
  return cat(worker.half ? "ends to " : "", to_words(worker.work.front()));
}

std::string Narrator::in_words(const Letter& letter) {
  const auto message = wire::decode(letter.kind, letter.body);
  return message ? to_words(*message) : message.error().what;
}

std::string Narrator::describe(const Transition& t) const {
  const auto worker = [&](Index i) {
    return cat(job_.workers[i].node_id, " (process ", job_.workers[i].process, ")");
  };
  const auto far_end = [&](Index link) {
    return cat(job_.links[link].worker == kNone ? cat("agent ", job_.links[link].agent)
                                                : worker(job_.links[link].worker),
               " on connection ", link + 1);
  };
  switch (t.kind) {
    case Kind::kUp:
      return cat(far_end(t.index), " → scheduler: ", in_words(job_.links[t.index].up.front()));
    case Kind::kDown:
      return cat("scheduler → ", far_end(t.index), ": ",
                 in_words(job_.links[t.index].down.front()));
    case Kind::kSchedulerHears:
      return cat("the scheduler hears the end of ", far_end(t.index));
    case Kind::kClientHears:
      return cat("the end is heard by ", far_end(t.index));
    case Kind::kStoreDone:
      return "stored";
    case Kind::kControllerTimer:
      return "the scheduler's deadline has passed";
    case Kind::kSchedulerStart:
      return "the scheduler starts";
    case Kind::kSchedulerExit:
      return "the scheduler exits";
    case Kind::kSchedulerSignal:
      return "the scheduler ends by a signal";
    case Kind::kConnect:
    case Kind::kAskConnect:
      return cat(worker(t.index), " connects", t.kind == Kind::kConnect ? "" : " for its exchange");
    case Kind::kAddressesFound:
      return cat(worker(t.index), " finds the addresses that its agent has left");
    case Kind::kAddressesOverdue:
      return cat(worker(t.index), " has looked for addresses for too long");
    case Kind::kTrain:
      return cat(worker(t.index), " ", what_is_next(job_.workers[t.index]));
    case Kind::kSumsIdle:
      return cat(worker(t.index), " has no sum under way any more");
    case Kind::kExit:
      return cat(worker(t.index), " exits with code ", *job_.workers[t.index].leaving);
    case Kind::kSignal:
      return cat(worker(t.index), " ends by a signal");
    case Kind::kUnreachable:
      return cat(worker(t.index), " finds no scheduler and gives up");
    case Kind::kPersonWorker:
      return cat("somebody starts ", job_.person.workers[t.index].node_id, " again");
    case Kind::kPersonScheduler:
      return "somebody starts the scheduler again";
    case Kind::kPersonResumes:
      return "the user has the job go on";
    case Kind::kProof:
      return cat("it is proven that ", scheduler_.proofs()[t.index].node_id, " is dead");
    case Kind::kNotThere:
      return cat("the host of ", scheduler_.not_there()[t.index].node_id,
                 " says that it is not there");
    default:
      return describe_for_agent(t);
  }
}

std::string Narrator::describe_for_agent(const Transition& t) const {
  switch (t.kind) {
    case Kind::kAgentConnect:
      return "the agent connects";
    case Kind::kPromote:
      return "the spare hears of its promotion";
    case Kind::kDied:
      return cat("the agent hears that process ", job_.agents[t.agent].deaths[t.index].process, " ",
                 job_.agents[t.agent].deaths[t.index].ending.kind == wire::Ending::Kind::kUnknown
                     ? "is dying"
                     : "has ended");
    case Kind::kSpawnFailed:
      return cat("process ", job_.agents[t.agent].not_spawned.front(), " could not be started");
    case Kind::kLook:
      return "the agent looks at its processes";
    case Kind::kPauseOver:
      return "the agent's pause is over";
    case Kind::kAgentAlone:
      return cat("agent ", t.agent, " has found no scheduler for too long");
    case Kind::kGrace:
      return "the agent's grace is over";
    case Kind::kRehearsalEnds:
      return "a rehearsal ends";
    case Kind::kSnapshotDone:
      return cat("agent ", t.agent, " ends what it does for a snapshot");
    default:
      return "?";
  }
}

std::string Narrator::describe(const Mishap& mishap) const {
  const Index i = mishap.index;
  const auto process = [&] { return cat("process ", job_.workers[i].process); };
  switch (mishap.fault) {
    case Fault::kKill:
      return cat("kill ", process(), " ", job_.workers[i].node_id);
    case Fault::kWipe:
      return cat(process(), " ", job_.workers[i].node_id, " and its arena are lost");
    case Fault::kKillAll:
      return "kill all workers";
    case Fault::kKillScheduler:
      return "kill the scheduler";
    case Fault::kStoreCrash:
      return "kill the scheduler; its store is durable";
    case Fault::kStoreFails:
      return "the journal can not be written: the scheduler ends itself";
    case Fault::kBreak:
      return cat("connection ", i + 1, " breaks");
    case Fault::kPause:
      return cat(process(), " is stopped for a while");
    case Fault::kStop:
      return cat(process(), " is stopped (SIGSTOP)");
    case Fault::kHang:
      return cat("the training thread of ", process(), " hangs");
    case Fault::kLosePages:
      return cat(process(), " loses pages of its arena");
    case Fault::kWipeAll:
      return "kill all workers; all that was in memory is lost";
    case Fault::kPowerCut:
      return "power cut: all is lost but the disk";
    case Fault::kPauseJob:
      return "a user pauses the job";
    case Fault::kStopScheduler:
      return "the scheduler is stopped (SIGSTOP)";
    case Fault::kForeign:
      return cat("a process of another host asks for the place of ", job_.workers[i].node_id);
    case Fault::kLoseHost:
      return cat("host ", i, " is lost");
    case Fault::kCutHost:
      return cat("host ", i, " is cut off for a while");
    case Fault::kReset:
      return cat("all connections of host ", i, " end");
    case Fault::kLinksFail:
      return cat("the links of the group of generation ", i, " fail");
    case Fault::kMove:
      return cat("host ", i, " shall have no ranks");
    case Fault::kStall:
      return cat("connection ", i + 1, " delivers nothing for a while");
    case Fault::kHiccup:
      return "everything stands still for a while";
    case Fault::kDouble:
      return cat("a second process is started as ", job_.workers[i].node_id);
    case Fault::kUserError:
      return cat("the training of ", job_.workers[i].node_id, " fails");
    case Fault::kEarlyExit:
      return cat(process(), " exits with code 0");
    case Fault::kInterrupt:
      return cat("agent ", i, " is interrupted");
    case Fault::kKillAgent:
      return cat("agent ", i, " is killed");
    case Fault::kSpawnFails:
      return "the next processes can not be started";
  }
  return "";
}

}  // namespace holdfast::sim
