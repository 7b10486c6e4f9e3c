// The training thread of a worker: opens its arena, mends it, joins the group, makes the steps.
#include <algorithm>

#include "base/text.h"
#include "sim/world.h"

namespace holdfast::sim {
namespace {

constexpr std::uint64_t kGarbage = 0xbad;  // Gradients that peers have half written.

}  // namespace

bool World::owner_lives(const Arena& arena, const Worker& opener) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
    return w.alive && w.process == arena.owner && w.process != opener.process;
  });
}

bool World::complete(const Worker& worker) const {
  const auto found = groups_.find(worker.generation);
  if (found == groups_.end()) return false;
  const auto& operations = found->second.operations;
  return worker.operation < operations.size() &&
         operations[worker.operation].arrivals == setup_.ranks;
}

bool World::can_train(const Worker& worker) const {
  switch (worker.stage) {
    case Stage::kOpening:
      return !owner_lives(arenas_[static_cast<std::size_t>(worker.rank)], worker);
    case Stage::kMending:
    case Stage::kMidMending:
    case Stage::kGoing:
    case Stage::kStepping:
    case Stage::kStaged:
    case Stage::kUpdating:
      return true;
    case Stage::kJoining: {
      const Group& joined = groups_.at(worker.generation);
      return joined.aborted || joined.joined + 1 == std::uint32_t{1} << setup_.ranks;
    }
    case Stage::kReducing:
    case Stage::kArrived:
      return complete(worker) || groups_.at(worker.generation).aborted;
    default:
      return false;
  }
}

void World::train(Index index) {
  Worker& worker = workers_[index];
  switch (worker.stage) {
    case Stage::kOpening:
      return open(index);
    case Stage::kMending:
      return mend(index);
    case Stage::kMidMending:
      return mend_rest(index);
    case Stage::kGoing:
      return go(index);
    case Stage::kJoining:
      if (group(worker).aborted) return park(index);
      worker.stage = Stage::kStepping;
      return;
    case Stage::kStepping:
      return arrive(index, Stage::kReducing);
    case Stage::kStaged:
      return arrive(index, Stage::kArrived);
    case Stage::kReducing:
    case Stage::kArrived:
      return pass(index);
    case Stage::kUpdating:
      finish_update(arena(worker));
      worker.stage = Stage::kStepping;
      tell_member(index, member::Committed{arena(worker).version, 0});
      if (arena(worker).version == setup_.steps) {
        worker.stage = Stage::kEnded;
        tell_member(index, member::TrainingEnded{setup_.steps});
      }
      return;
    default:
      return;
  }
}

void World::open(Index index) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  own.owner = worker.process;
  if (own.updating) finish_update(own);
  worker.stage = Stage::kParked;
  tell_member(index, member::Parked{{own.version, own.staged}});
}

void World::mend(Index index) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  checkers_.wrote(own, worker.process);
  worker.stage = Stage::kMidMending;
  switch (worker.repair.kind) {
    case wire::RepairKind::kBegin:
      if (own.version != kNoVersion) {
        checkers_.violate("S3: an arena that holds a version is to begin at version 0");
      }
      return;
    case wire::RepairKind::kFinish:
      if (own.version == worker.repair.version) return mended(index);
      if (own.version + 1 != worker.repair.version || own.staged != worker.repair.version) {
        checkers_.violate("S7: a rank is to finish a step that it has not staged");
      }
      own.updating = true;
      return;
    case wire::RepairKind::kReceive:
      own.version = own.staged = kNoVersion;  // Half a copy is nothing.
      own.content = kGarbage;
      return;
  }
}

void World::mend_rest(Index index) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  checkers_.wrote(own, worker.process);
  if (worker.repair.kind == wire::RepairKind::kFinish) {
    finish_update(own);
  } else if (worker.repair.kind == wire::RepairKind::kBegin) {
    own.version = own.staged = 0;
    own.content = kInitialContent;
  } else {
    const Arena& source = arenas_[static_cast<std::size_t>(worker.repair.source)];
    if (source.version == kNoVersion && (struck_ & bit(Fault::kWipe)) != 0) {
      source_lost_ = true;
      worker.stage = Stage::kFailed;
      return tell_member(index, member::TrainingFailed{"the source's arena is lost"});
    }
    checkers_.copies(source, worker.repair.version);
    own.version = own.staged = source.version;
    own.content = source.content;
  }
  mended(index);
}

void World::mended(Index index) {
  Worker& worker = workers_[index];
  worker.stage = Stage::kParked;
  tell_member(index, member::RepairDone{{arena(worker).version, arena(worker).staged}});
}

// The group forms when a rank has a step to make.
void World::go(Index index) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  if (own.staged != own.version) {
    checkers_.wrote(own, worker.process);
    own.staged = own.version;  // The step is void.
  }
  if (worker.version == setup_.steps) {
    worker.stage = Stage::kEnded;
    return tell_member(index, member::TrainingEnded{setup_.steps});
  }
  if (worker.cancelled >= worker.generation || group(worker).aborted) return park(index);
  group(worker).joined |= std::uint32_t{1} << worker.rank;
  worker.stage = Stage::kJoining;
}

void World::park(Index index) {
  Worker& worker = workers_[index];
  const Arena& own = arena(worker);
  worker.stage = Stage::kParked;
  tell_member(index, member::Parked{{own.version, own.staged}});
}

void World::arrive(Index index, Stage then) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  Group& joined = group(worker);
  if (joined.aborted) return park(index);
  if (joined.operations.size() <= worker.operation) joined.operations.resize(worker.operation + 1);
  auto& operation = joined.operations[worker.operation];
  if (operation.arrivals > 0 && operation.step != own.version + 1) {
    checkers_.violate("S2: ranks of one generation are in different steps");
  }
  operation.step = own.version + 1;
  if (then == Stage::kReducing) {
    operation.sum += contribution(own.content, worker.rank, own.version + 1);
    checkers_.wrote(own, worker.process);
    own.gradient = kGarbage;
  }
  worker.stage = then;
  if (++operation.arrivals == setup_.ranks) checkers_.gathered(worker.generation);
}

// Waits at an operation that is complete, or never will be. Where the machine has said Abort before
// the training thread got to run, its control thread has said Parked for it, complete or not.
void World::pass(Index index) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  if (worker.cancelled >= worker.generation || !complete(worker)) return park(index);
  checkers_.wrote(own, worker.process);
  if (worker.stage == Stage::kReducing) {
    own.gradient = group(worker).operations[worker.operation].sum;
    own.staged = own.version + 1;
    worker.stage = Stage::kStaged;
  } else {
    own.updating = true;
    worker.stage = Stage::kUpdating;
  }
  ++worker.operation;
}

void World::finish_update(Arena& arena) {
  arena.version = arena.staged;
  arena.content = updated(arena.content, arena.gradient, arena.version);
  arena.updating = false;
  checkers_.committed(arena);
}

}  // namespace holdfast::sim
