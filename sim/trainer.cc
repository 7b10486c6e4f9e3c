#include "sim/trainer.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "core/planner/holders.h"
#include "sim/exchange.h"
#include "sim/words.h"

namespace holdfast::sim {
namespace {

constexpr std::uint32_t kNoRoomRarity = 24;

template <class Kind>
bool is(const trainer::Work& work) {
  return std::holds_alternative<Kind>(work);
}

}  // namespace

bool Training::complete(const Worker& worker) const {
  const auto found = groups_.find(worker.joined);
  if (found == groups_.end()) return false;
  const auto& operations = found->second.operations;
  return worker.operation < operations.size() &&
         operations[worker.operation].arrivals == job_.setup.ranks;
}

// Whether all wards of this worker have given it their private parts of the step under way.
bool Training::has_come(const Worker& worker) const {
  const auto& given = groups_.at(worker.joined).given;
  const auto all = memory_.wards(worker);
  return std::all_of(all.begin(), all.end(), [&](Rank ward) {
    const auto found = given.find(ward);
    return found != given.end() && found->second == memory_.arena(worker).staged;
  });
}

bool Training::has_formed(const Worker& worker) const {
  return groups_.at(worker.joined).joined.count() == static_cast<std::size_t>(job_.setup.ranks);
}

Whereabouts Training::whereabouts(const Worker& worker) const {
  if (worker.hung) return *worker.hung;
  const bool trains = worker.joined != 0 && worker.trainer &&
                      worker.trainer->state() >= trainer::State::kStepping &&
                      worker.trainer->state() <= trainer::State::kUpdating;
  const bool has_arrived =
      trains && worker.half && !worker.work.empty() && is<trainer::Arrive>(worker.work.front());
  const bool sums = trains && !worker.work.empty() && is<trainer::AwaitSums>(worker.work.front());
  if (serves(worker)) {
    // Its operations are not told. It waits for the workers in an exchange.
    return {.generation = worker.joined,
            .version = memory_.arena(worker).version,
            .steps = worker.steps,
            .doing = has_arrived ? Doing::kCommitting
                     : trains    ? Doing::kComputing
                                 : Doing::kRecovering,
            .waits_for_team = sums || worker.awaits_end};
  }
  return {.generation = worker.joined,
          .operations = worker.operation + (has_arrived || sums ? 1 : 0),
          .version = worker.rank == kNoRank ? kNoVersion : memory_.arena(worker).version,
          .steps = worker.steps,
          .doing = trains ? Doing::kComputing : Doing::kRecovering};
}

bool Training::can_train(const Worker& worker) const {
  if (worker.hung) return false;
  if (const auto end = ValueExchange::ends(worker)) return *end <= job_.now && !worker.leaving;
  if (worker.program == Program::kOpening) {
    return !memory_.owner_lives(memory_.arena(worker), worker);
  }
  if (worker.program != Program::kTraining) return false;
  if (worker.work.empty()) {
    if (sees_end(worker)) return true;
    const auto deadline = worker.trainer->deadline();
    return deadline && *deadline <= job_.now;
  }
  const auto& work = worker.work.front();
  if (const auto* repair = std::get_if<trainer::Repair>(&work)) {
    return !fetches(worker, *repair) || job_.agents[worker.agent].cut_until <= job_.now ||
           worker.repair_stopped;
  }
  if (is<trainer::LeaveGroup>(work)) return !worker.sums_busy;
  const bool exchanges = is<trainer::ExchangeCopies>(work);
  const bool waits =
      is<trainer::AwaitSums>(work) ||
      (worker.half && (exchanges || is<trainer::Arrive>(work) || is<trainer::JoinGroup>(work)));
  const bool meets =
      waits || exchanges || is<trainer::Arrive>(work) || is<trainer::JoinGroup>(work);
  if (meets && is_cut_off(worker) && !has_ended(worker)) return false;
  if (!waits) return true;
  if (groups_.at(worker.joined).aborted) return !worker.sums_busy;
  if (exchanges) return has_come(worker);
  return is<trainer::JoinGroup>(work) ? has_formed(worker) : complete(worker);
}

void Training::train(Index index) {
  Worker& worker = job_.workers[index];
  if (worker.program == Program::kOpening) return open(index);
  if (worker.program == Program::kExchanging) {
    asked_in_vain_ = true;
    return fail(index, {.kind = wire::Reason::Kind::kProgram});
  }
  if (worker.work.empty() && sees_end(worker)) {
    worker.awaits_end = false;
    return groups_.at(worker.joined).aborted ? begin_step(index) : end_training(index);
  }
  if (worker.work.empty()) return events_.tell_trainer(index, trainer::TimePassed{});
  const trainer::Work work = worker.work.front();
  if (!worker.half && std::visit([&](const auto& w) { return begin(index, w); }, work)) {
    worker.half = true;
    return;
  }
  worker.half = false;
  worker.work.pop_front();
  std::visit([&](const auto& w) { end(index, w); }, work);
}

void Training::open(Index index) {
  Worker& worker = job_.workers[index];
  Arena& own = memory_.arena(worker);
  own.owner = worker.process;
  if (own.updating) finish_update(own);
  // A successor does not know whether an update has used the gradient since.
  own.lost_state = own.lost_state || own.lost_gradient;
  own.lost_gradient = false;
  own.is_noticed = true;  // It stands in the arena.
  if (serves(worker)) memory_.open_held(worker);
  worker.program = Program::kTraining;
  events_.tell_trainer(index, trainer::JoinCalled{memory_.holding(worker)});
}

bool Training::is_linked(const Worker& worker) const {
  const auto& hosts = worker.host_of;
  return job_.setup.hosts && std::set(hosts.begin(), hosts.end()).size() > 1;
}

// Whether the worker's host is cut off and its group has ranks on other hosts.
bool Training::is_cut_off(const Worker& worker) const {
  if (!job_.setup.hosts) return false;
  const auto is_cut = [&](Index host) { return job_.agents[host].cut_until > job_.now; };
  return is_cut(worker.agent) && is_linked(worker);
}

// Whether the worker was told, by a mate on its host or by the scheduler, that its group is over.
bool Training::has_ended(const Worker& worker) const {
  return worker.joined != 0 && worker.stopped_up_to >= worker.joined;
}

void Training::carry_out(Index index, const trainer::Action& action) {
  Worker& worker = job_.workers[index];
  if (job_.log.is_wanted()) {
    job_.log.tell(cat("    ", worker.node_id, "'s trainer: ", to_words(action)));
  }
  job_.log.fold(action.index());
  if (const auto* given = std::get_if<trainer::Do>(&action)) {
    if (is<trainer::Repair>(given->work)) worker.said_parked = worker.repair_stopped = false;
    worker.work.push_back(given->work);
  } else if (const auto* said = std::get_if<trainer::Say>(&action)) {
    const bool reports = std::holds_alternative<wire::Report>(said->message);
    if (reports || std::holds_alternative<wire::Repaired>(said->message)) worker.said_parked = true;
    if (reports && worker.sums_busy) job_.checkers.violate("S6: a rank has reported while it sums");
    events_.tell_member(index, member::Told{said->message});
  } else if (const auto* stop = std::get_if<trainer::StopGroup>(&action)) {
    worker.stopped_up_to = std::max(worker.stopped_up_to, stop->generation);
    stop_group(index);
  } else if (std::holds_alternative<trainer::StopRepair>(action)) {
    worker.repair_stopped = true;
  } else if (const auto* resumed = std::get_if<trainer::Resume>(&action)) {
    resume(index, *resumed);
  }
}

void Training::resume(Index index, const trainer::Resume& action) {
  Worker& worker = job_.workers[index];
  worker.said_parked = false;
  if (action.ended == kNoRank) job_.checkers.met(action.generation, action.peers->places());
  worker.host_of.assign(static_cast<std::size_t>(job_.setup.ranks), 0);
  const auto& peers = action.peers->places();
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    const std::string& endpoint = peers[rank].endpoint;
    worker.host_of[rank] = memory_.host_named(endpoint.substr(0, endpoint.find(':')));
  }
  if (job_.setup.hosts) {
    const auto& hosts = worker.host_of;
    worker.holder_of = planner::holders({hosts.begin(), hosts.end()}, job_.setup.workers());
    memory_.go_on_with(worker.holder_of);
  }
  const auto at = static_cast<std::size_t>(worker.rank);
  const bool is_fenced = journal_.has_roster() &&
                         journal_.formation()->roster.at(at).incarnation != worker.incarnation;
  if (is_out_of_sight(worker) && is_fenced) return;  // An old message that came late.
  auto arenas = memory_.arenas_in_use();
  arenas[at] = memory_.arena(worker);
  job_.checkers.went(worker.rank, action.generation, action.version, arenas);
}

void Training::stop_group(Index index) {
  Worker& worker = job_.workers[index];
  if (worker.joined != 0) groups_[worker.joined].aborted = true;
  const bool sums =
      !worker.work.empty() && is<trainer::AwaitSums>(worker.work.front()) && !complete(worker);
  if (sums && !worker.sums_busy) worker.sums_busy = job_.choices.pick(2) == 1;
  events_.tell_trainer(index, trainer::GroupStopped{!worker.sums_busy});
}

void Training::sums_end(Index index) {
  job_.workers[index].sums_busy = false;
  events_.tell_trainer(index, trainer::SumsIdle{});
}

// Checks a write of the worker's training thread to its arena.
void Training::wrote(const Worker& worker) {
  job_.checkers.wrote(memory_.arena(worker), worker.process);
  if (worker.said_parked)
    job_.checkers.violate("S6: a rank that has said that it is parked writes");
}

bool Training::begin(Index index, const trainer::JoinGroup& work) {
  Worker& worker = job_.workers[index];
  worker.operation = 0;
  if (worker.stopped_up_to >= work.generation) return false;
  if (groups_[work.generation].aborted) return false;
  worker.joined = work.generation;
  groups_[work.generation].linked = is_linked(worker);
  groups_[work.generation].joined.set(static_cast<std::size_t>(worker.rank));
  return true;
}

// The worker gives its own part to its holder; then it waits for those of its wards.
bool Training::begin(Index index, const trainer::ExchangeCopies& work) {
  Worker& worker = job_.workers[index];
  Group& group = groups_[worker.joined];
  if (group.aborted) return false;
  group.given[worker.rank] = work.version;
  for (const Rank ward : memory_.wards(worker)) {
    PrivatePart& part = memory_.held(memory_.host_of(worker), worker.rank, ward);
    if (part.has(work.version)) part.staged = part.version;  // Comes again, after a void step.
  }
  return true;
}

// Notices lost pages, as runtime/worker/session.cc does: the step under way is void. Requires: the
// worker has not arrived at a barrier that is still open.
bool Training::look_for_losses(Index index) {
  Worker& worker = job_.workers[index];
  Arena& own = memory_.arena(worker);
  if (!own.has_lost() || own.is_noticed) return false;
  own.is_noticed = true;
  own.lost_gradient = false;
  own.staged = own.version;
  if (worker.joined != 0) groups_[worker.joined].aborted = true;
  events_.tell_trainer(index, trainer::PagesLost{memory_.holding(worker), 1});
  return true;
}

bool Training::begin(Index index, const trainer::Arrive&) {
  if (look_for_losses(index)) return false;
  const bool has_arrived = arrive(job_.workers[index]);
  const Worker& worker = job_.workers[index];
  if (has_arrived && complete(worker) && !is_out_of_sight(worker)) check_copies(worker);
  return has_arrived;
}

bool Training::begin(Index index, const trainer::Update&) {
  Worker& worker = job_.workers[index];
  Arena& own = memory_.arena(worker);
  wrote(worker);
  own.updating = true;
  return true;
}

// Counts the worker's arrival at the group's next operation. False: the group has ended.
bool Training::arrive(Worker& worker) {
  const Arena& own = memory_.arena(worker);
  Group& group = groups_[worker.joined];
  if (group.aborted) return false;
  if (group.operations.size() <= worker.operation) group.operations.resize(worker.operation + 1);
  auto& operation = group.operations[worker.operation];
  if (operation.arrivals > 0 && operation.step != own.version + 1) {
    job_.checkers.violate("S2: ranks of one generation are in different steps");
  }
  operation.step = own.version + 1;
  // A rank on a host that was cut off may come after it was replaced, and find all arrivals there.
  if (++operation.arrivals < job_.setup.ranks || is_out_of_sight(worker)) return true;
  job_.checkers.gathered(worker.joined);
  return true;
}

void Training::end(Index index, const trainer::Unstage&) {
  Worker& worker = job_.workers[index];
  Arena& own = memory_.arena(worker);
  wrote(worker);
  own.staged = own.version;  // The step is void.
  memory_.settle(worker);
}

void Training::end(Index index, const trainer::JoinGroup& work) {
  Worker& worker = job_.workers[index];
  const bool formed = worker.joined == work.generation && has_formed(worker);
  const bool linked = is_linked(worker);
  if (!formed || !memory_.seed(worker)) {
    const auto held = memory_.holding(worker).held;
    return events_.tell_trainer(index,
                                trainer::NotFormed{false, "the group has ended", held, linked});
  }
  const bool is_apart = job_.setup.hosts ? linked : !job_.setup.serves(worker.rank);
  const bool exchanges = job_.setup.holders && is_apart;
  events_.tell_trainer(index, trainer::Formed{groups_[worker.joined].aborted, linked, exchanges,
                                              memory_.holding(worker).held});
}

void Training::end(Index index, const trainer::LeaveGroup&) {
  Worker& worker = job_.workers[index];
  if (worker.joined != 0) groups_[worker.joined].aborted = true;
  worker.joined = 0;
  events_.tell_trainer(index, trainer::LeftGroup{});
}

void Training::end(Index index, const trainer::AwaitSums&) {
  Worker& worker = job_.workers[index];
  if (!complete(worker))
    return events_.tell_trainer(index, trainer::SumsDone{trainer::Outcome::kStopped});
  Arena& own = memory_.arena(worker);
  job_.checkers.wrote(own, worker.process);  // Not wrote(): it was written before it said "parked".
  own.gradient = groups_[worker.joined].operations[worker.operation].sum;
  ++worker.operation;
  events_.tell_trainer(index, trainer::SumsDone{trainer::Outcome::kDone});
}

void Training::end(Index index, const trainer::Stage& work) {
  Arena& own = memory_.arena(job_.workers[index]);
  wrote(job_.workers[index]);
  own.staged = work.version;
  events_.tell_trainer(index, trainer::Staged{});
}

void Training::end(Index index, const trainer::ExchangeCopies& work) {
  Worker& worker = job_.workers[index];
  const bool done = worker.joined != 0 && has_come(worker) &&
                    (!groups_[worker.joined].aborted || job_.choices.pick(2) == 0);
  for (const Rank ward : memory_.wards(worker)) {
    if (done)
      memory_.held(memory_.host_of(worker), worker.rank, ward) = {work.version - 1, work.version};
  }
  events_.tell_trainer(
      index, trainer::CopiesExchanged{done ? trainer::Outcome::kDone : trainer::Outcome::kStopped,
                                      memory_.holding(worker).held});
}

// P50: once a step is committed, each private part is on two hosts, unless one is lost just now, or
// there is only one.
void Training::check_copies(const Worker& worker) {
  const bool wiped = (job_.struck & bit(Fault::kWipe)) != 0;
  for (Rank ward = 0; job_.setup.holders && !wiped && ward < job_.setup.ranks; ++ward) {
    const Rank holder = memory_.holder_of(worker, ward);
    if (holder == kNoRank) continue;
    const Index host = worker.host_of[static_cast<std::size_t>(holder)];
    if (job_.setup.hosts && job_.agents[host].is_host_lost) continue;
    if (memory_.held(host, holder, ward).has(memory_.arena(worker).version + 1)) continue;
    job_.checkers.violate("P50: a step is committed, and a private part of it has no holder");
  }
}

void Training::end(Index index, const trainer::Arrive&) {
  Worker& worker = job_.workers[index];
  // A rank that is cut off when its group ends does not learn that all have arrived.
  const bool done = complete(worker) && !is_cut_off(worker);
  if (done) ++worker.operation;
  events_.tell_trainer(
      index, trainer::Arrived{done ? trainer::Outcome::kDone : trainer::Outcome::kStopped});
}

void Training::end(Index index, const trainer::Update& work) {
  ++job_.workers[index].steps;
  finish_update(memory_.arena(job_.workers[index]));
  if (job_.setup.holders) memory_.drop_the_rest(job_.workers[index]);
  memory_.settle(job_.workers[index]);
  (void)look_for_losses(index);
  tell_kept(index);
  events_.tell_trainer(index, trainer::Updated{});
  if (!work.keeps) return;
  Worker& worker = job_.workers[index];
  worker.kept = {memory_.arena(worker).version, keep_part(worker)};
}

// Before the next update, which waits until the copy is made.
void Training::tell_kept(Index index) {
  auto& kept = job_.workers[index].kept;
  if (kept) events_.tell_trainer(index, *std::exchange(kept, std::nullopt));
}

// Copies what the rank has to give for a snapshot. Returns why it could not.
std::string Training::keep_part(const Worker& worker) {
  if (memory_.arena(worker).has_lost()) return "memory errors have taken pages of the state";
  if (job_.choices.pick(2, kNoRoomRarity) == 1) return "there is no room for it";
  memory_.keep_part(worker);
  return "";
}

void Training::end(Index index, const trainer::Return& result) {
  using What = trainer::Return::What;
  Worker& worker = job_.workers[index];
  Arena& own = memory_.arena(worker);
  check_told(worker, result.what);
  switch (result.what) {
    case What::kJoined:
    case What::kCommitted:
    case What::kCommittedByPlan:
    case What::kVoid:
      if (own.version == job_.setup.steps && !serves(worker)) {
        // What the program does with its last state may be wrong.
        lost_at_end_ = lost_at_end_ || own.has_lost();
        if (own.has_lost()) return fail(index, {.kind = wire::Reason::Kind::kProgram});
        return end_training(index);
      }
      (void)look_for_losses(index);
      return begin_step(index);
    case What::kBegun:
    case What::kBegunAnew:
      if (own.version == job_.setup.steps) return serve_step(index);
      wrote(worker);
      worker.began_at = own.version;
      if (arrive(worker)) {
        groups_[worker.joined].operations[worker.operation].sum +=
            contribution(own.lost_state ? kGarbage : own.content, worker.rank, own.version + 1);
        own.gradient = kGarbage;
      }
      (void)look_for_losses(index);
      return events_.tell_trainer(index, trainer::StepEnded{});
    case What::kTooLate:
      if (serves(worker) && own.version == job_.setup.steps) return end_training(index);
      return job_.checkers.violate("P33: a rank has a step to make, but another has ended");
    case What::kFailed:
      return fail(index, result.reason);
    case What::kEnded:
    case What::kEndUnconfirmed:
      worker.program = Program::kEnded;
      worker.leaving = 0;
      return;
    case What::kOver:
      worker.program = Program::kEnded;
      if (!worker.leaving) worker.leaving = 1;
      return;
  }
}

void Training::begin_step(Index index) {
  const Worker& worker = job_.workers[index];
  events_.tell_trainer(index,
                       trainer::StepBegun{worker.joined != 0 && groups_[worker.joined].aborted});
}

// A server does not know which step is the last one, and waits for the workers in the next one.
void Training::serve_step(Index index) {
  Worker& worker = job_.workers[index];
  worker.began_at = memory_.arena(worker).version;
  worker.awaits_end = true;
}

bool Training::sees_end(const Worker& worker) const {
  if (!worker.awaits_end) return false;
  const Group& group = groups_.at(worker.joined);
  return group.left || group.aborted;
}

void Training::end_training(Index index) {
  if (const Worker& worker = job_.workers[index]; worker.joined != 0) {
    groups_[worker.joined].left = true;
  }
  events_.tell_trainer(index, trainer::EndCalled{});
}

// Checks what the program is told about a step that it has begun.
void Training::check_told(const Worker& worker, trainer::Return::What what) {
  using What = trainer::Return::What;
  const Arena& own = memory_.arena(worker);
  const bool begins = what == What::kBegun || what == What::kBegunAnew;
  if (begins && own.staged != own.version) {
    job_.checkers.violate("S7: a step begins while another one is staged");
  }
  const bool made = what == What::kCommitted || what == What::kCommittedByPlan;
  if ((made || what == What::kVoid) && own.version != worker.began_at + (made ? 1 : 0)) {
    job_.checkers.violate(
        "S5: a program was told that a step was made which is void, or the reverse");
  }
}

void Training::fail(Index index, const wire::Reason& reason) {
  job_.workers[index].program = Program::kFailed;
  job_.workers[index].work.clear();
  if (job_.workers[index].over) {
    job_.workers[index].leaving = 1;  // The job is over: no need to report.
  }
  events_.tell_member(index, member::TrainingFailed{reason});
}

void Training::finish_update(Arena& arena) {
  arena.version = arena.staged;
  arena.content = updated(arena.content, arena.gradient, arena.version);
  arena.updating = false;
  // What the update made of zeros is lost as well.
  arena.lost_state = arena.lost_state || arena.lost_gradient;
  arena.lost_gradient = false;
  job_.checkers.committed(arena);
}

}  // namespace holdfast::sim
