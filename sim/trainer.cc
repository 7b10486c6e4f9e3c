// The training thread of a worker: does the work that the trainer machine gives it, and plays the
// program.
#include <algorithm>

#include "base/text.h"
#include "core/planner/holders.h"
#include "sim/words.h"
#include "sim/world.h"

namespace holdfast::sim {

namespace {

// Longer than any run, so that an end which is never confirmed is found.
constexpr Duration kConfirmationTimeout = std::chrono::hours(1);
constexpr Duration kLinkPatience = std::chrono::milliseconds(300);
constexpr const char* kSourceLost = "the source's arena is lost";
constexpr std::uint64_t kGarbage = 0xbad;  // Content that is only half written.

template <class Kind>
bool is(const trainer::Work& work) {
  return std::holds_alternative<Kind>(work);
}

}  // namespace

trainer::Options World::trainer_options() const {
  return {.replacement_timeout = kReplacementTimeout,
          .link_patience = kLinkPatience,
          .forming_patience = kReplacementTimeout,
          .scheduler_timeout = kConfirmationTimeout,
          .progress_interval = Duration{}};
}

bool World::owner_lives(const Arena& arena, const Worker& opener) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
    return w.alive && w.process == arena.owner && w.process != opener.process;
  });
}

bool World::complete(const Worker& worker) const {
  const auto found = groups_.find(worker.joined);
  if (found == groups_.end()) return false;
  const auto& operations = found->second.operations;
  return worker.operation < operations.size() &&
         operations[worker.operation].arrivals == setup_.ranks;
}

// Whether all wards of this worker have given it their private parts of the step under way.
bool World::has_come(const Worker& worker) const {
  const auto& given = groups_.at(worker.joined).given;
  const auto all = wards(worker);
  return std::all_of(all.begin(), all.end(), [&](Rank ward) {
    const auto found = given.find(ward);
    return found != given.end() && found->second == arena(worker).staged;
  });
}

bool World::has_formed(const Worker& worker) const {
  return groups_.at(worker.joined).joined.count() == static_cast<std::size_t>(setup_.ranks);
}

bool World::can_train(const Worker& worker) const {
  if (const auto end = exchange_ends(worker)) return *end <= now_ && !worker.leaving;
  if (worker.program == Program::kOpening) {
    return !owner_lives(arena(worker), worker);
  }
  if (worker.program != Program::kTraining) return false;
  if (worker.work.empty()) {
    const auto deadline = worker.trainer->deadline();
    return deadline && *deadline <= now_;
  }
  const auto& work = worker.work.front();
  if (const auto* repair = std::get_if<trainer::Repair>(&work)) {
    return !fetches(worker, *repair) || agents_[worker.agent].cut_until <= now_ ||
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

void World::train(Index index) {
  Worker& worker = workers_[index];
  if (worker.program == Program::kOpening) return open(index);
  if (worker.program == Program::kExchanging) {
    asked_in_vain_ = true;
    return fail_training(index, {.kind = wire::Reason::Kind::kProgram});
  }
  if (worker.work.empty()) return tell_trainer(index, trainer::TimePassed{});
  const trainer::Work work = worker.work.front();
  if (!worker.half && std::visit([&](const auto& w) { return begin(index, w); }, work)) {
    worker.half = true;
    return;
  }
  worker.half = false;
  worker.work.pop_front();
  std::visit([&](const auto& w) { end(index, w); }, work);
}

void World::open(Index index) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  own.owner = worker.process;
  if (own.updating) finish_update(own);
  worker.program = Program::kTraining;
  tell_trainer(index, trainer::JoinCalled{holding(worker)});
}

// ---- Private parts ------------------------------------------------------------------------------

World::Index World::host_named(const std::string& name) const {
  for (Index i = 0; setup_.hosts && i < agents_.size(); ++i) {
    if (name == cat("host-", i)) return i;
  }
  return 0;
}

bool World::is_linked(const Worker& worker) const {
  const auto& hosts = worker.host_of;
  return setup_.hosts && std::set(hosts.begin(), hosts.end()).size() > 1;
}

// Whether the worker's host is cut off and its group has ranks on other hosts.
bool World::is_cut_off(const Worker& worker) const {
  if (!setup_.hosts) return false;
  const auto is_cut = [&](Index host) { return agents_[host].cut_until > now_; };
  return is_cut(worker.agent) && is_linked(worker);
}

// Whether the worker was told, by a mate on its host or by the scheduler, that its group is over.
bool World::has_ended(const Worker& worker) const {
  return worker.joined != 0 && worker.stopped_up_to >= worker.joined;
}

Rank World::holder_of(const Worker& worker, Rank rank) const {
  if (!setup_.hosts) return (rank + 1) % setup_.ranks;
  return worker.holder_of.at(static_cast<std::size_t>(rank));
}

std::vector<Rank> World::wards(const Worker& worker) const {
  std::vector<Rank> found;
  for (Rank rank = 0; setup_.holders && rank < setup_.ranks; ++rank) {
    if (holder_of(worker, rank) == worker.rank) found.push_back(rank);
  }
  return found;
}

Holding World::holding(const Worker& worker) const {
  const Arena& own = arena(worker);
  Holding holding{own.version, own.staged, setup_.private_is_own, {}};
  for (const auto& [key, part] : private_parts_) {
    if (!is_held_by(worker, key) || part.version == kNoVersion) continue;
    holding.held.push_back({std::get<2>(key), part.version, part.staged});
  }
  return holding;
}

// Brings the private parts that the worker holds to the version of its own arena.
void World::settle(const Worker& worker) {
  const Version v = arena(worker).version;
  for (auto& [key, part] : private_parts_) {
    if (!is_held_by(worker, key) || part.version == kNoVersion) continue;
    if (v == part.version) part.staged = v;
    if (v == part.staged) part.version = v;
  }
}

void World::forget_held(const Worker& worker) {
  std::erase_if(private_parts_, [&](const auto& entry) { return is_held_by(worker, entry.first); });
}

// The worker has made a step: it drops held parts for which that step has not come.
void World::drop_the_rest(const Worker& worker) {
  std::erase_if(private_parts_, [&](const auto& entry) {
    return is_held_by(worker, entry.first) && entry.second.staged != arena(worker).version;
  });
}

// Once the group has formed, the holder gets parts that it lacks. False: a ward has lost its own.
bool World::seed(const Worker& worker) {
  if (!setup_.holders) return true;
  settle(worker);
  const Version v = arena(worker).version;
  for (const Rank ward : wards(worker)) {
    PrivatePart& part = held(host_of(worker), worker.rank, ward);
    if (part.has(v)) continue;
    part = {};
    if (arena(worker.host_of[static_cast<std::size_t>(ward)], ward).version != v) return false;
    part = {v, v};
  }
  return true;
}

// The arenas on the hosts where the ranks' seats are.
std::vector<Arena> World::arenas_in_use() {
  std::vector<Arena> found;
  for (Rank rank = 0; rank < setup_.ranks; ++rank) {
    const bool known = setup_.hosts && has_durable_roster();
    const auto at = static_cast<std::size_t>(rank);
    Arena one = arena(known ? host_named(durable_->roster[at].host) : 0, rank);
    if (known && finished(rank) && one.version == kNoVersion)
      one.spent = true;  // The host was lost after the rank had ended its training.
    found.push_back(one);
  }
  return found;
}

// ---- The trainer machine ------------------------------------------------------------------------

void World::carry_out(Index index, const trainer::Action& action) {
  Worker& worker = workers_[index];
  if (log_) tell(cat("    ", worker.node_id, "'s trainer: ", to_words(action)));
  fold(action.index());
  if (const auto* given = std::get_if<trainer::Do>(&action)) {
    if (is<trainer::Repair>(given->work)) worker.said_parked = worker.repair_stopped = false;
    worker.work.push_back(given->work);
  } else if (const auto* said = std::get_if<trainer::Say>(&action)) {
    const bool reports = std::holds_alternative<wire::Report>(said->message);
    if (reports || std::holds_alternative<wire::Repaired>(said->message)) worker.said_parked = true;
    if (reports && worker.sums_busy) checkers_.violate("S6: a rank has reported while it sums");
    tell_member(index, member::Told{said->message});
  } else if (const auto* stop = std::get_if<trainer::StopGroup>(&action)) {
    worker.stopped_up_to = std::max(worker.stopped_up_to, stop->generation);
    stop_group(index);
  } else if (std::holds_alternative<trainer::StopRepair>(action)) {
    worker.repair_stopped = true;
  } else if (const auto* resumed = std::get_if<trainer::Resume>(&action)) {
    resume(index, *resumed);
  }
}

void World::resume(Index index, const trainer::Resume& action) {
  Worker& worker = workers_[index];
  worker.said_parked = false;
  if (action.ended == kNoRank) checkers_.met(action.generation, action.peers->places());
  worker.host_of.assign(static_cast<std::size_t>(setup_.ranks), 0);
  const auto& peers = action.peers->places();
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    const std::string& endpoint = peers[rank].endpoint;
    worker.host_of[rank] = host_named(endpoint.substr(0, endpoint.find(':')));
  }
  if (setup_.hosts)
    worker.holder_of = planner::holders({worker.host_of.begin(), worker.host_of.end()});
  const auto at = static_cast<std::size_t>(worker.rank);
  const bool is_fenced =
      has_durable_roster() && durable_->roster.at(at).incarnation != worker.incarnation;
  if (is_out_of_sight(worker) && is_fenced) return;  // An old message that came late.
  auto arenas = arenas_in_use();
  arenas[at] = arena(worker);
  checkers_.went(worker.rank, action.generation, action.version, arenas);
}

void World::stop_group(Index index) {
  Worker& worker = workers_[index];
  if (worker.joined != 0) groups_[worker.joined].aborted = true;
  const bool sums =
      !worker.work.empty() && is<trainer::AwaitSums>(worker.work.front()) && !complete(worker);
  if (sums && !worker.sums_busy) worker.sums_busy = choices_.pick(2) == 1;
  tell_trainer(index, trainer::GroupStopped{!worker.sums_busy});
}

void World::sums_end(Index index) {
  workers_[index].sums_busy = false;
  tell_trainer(index, trainer::SumsIdle{});
}

// Checks a write of the worker's training thread to its arena.
void World::wrote(const Worker& worker) {
  checkers_.wrote(arena(worker), worker.process);
  if (worker.said_parked) checkers_.violate("S6: a rank that has said that it is parked writes");
}

// ---- First halves: between them and the second anything may happen ------------------------------

bool World::begin(Index index, const trainer::Repair& work) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  wrote(worker);
  if (work.order.moved) forget_held(worker);
  switch (work.order.act) {
    case wire::Act::kKeep:
      return false;
    case wire::Act::kBegin:
      if (own.version != kNoVersion && own.version != 0) {
        checkers_.violate("S3: an arena that holds a version is to begin at version 0");
      }
      return true;
    case wire::Act::kFinish:
      if (own.version == work.version) return false;
      if (own.version + 1 != work.version || own.staged != work.version) {
        checkers_.violate("S7: a rank is to finish a step that it has not staged");
      }
      own.updating = true;
      return true;
    case wire::Act::kReceive:
      if (setup_.private_is_own && work.version != 0 && !private_source(worker, work)) {
        checkers_.violate("S3: a rank is to go on without the private part of its state");
      }
      own.version = own.staged = kNoVersion;  // Half a copy counts as no version.
      own.content = kGarbage;
      return true;
  }
  return false;
}

bool World::begin(Index index, const trainer::JoinGroup& work) {
  Worker& worker = workers_[index];
  worker.operation = 0;
  if (worker.stopped_up_to >= work.generation) return false;
  if (groups_[work.generation].aborted) return false;
  worker.joined = work.generation;
  groups_[work.generation].linked = is_linked(worker);
  groups_[work.generation].joined.set(static_cast<std::size_t>(worker.rank));
  return true;
}

// The worker gives its own part to its holder; then it waits for those of its wards.
bool World::begin(Index index, const trainer::ExchangeCopies& work) {
  Worker& worker = workers_[index];
  Group& group = groups_[worker.joined];
  if (group.aborted) return false;
  group.given[worker.rank] = work.version;
  for (const Rank ward : wards(worker)) {
    PrivatePart& part = held(host_of(worker), worker.rank, ward);
    if (part.has(work.version)) part.staged = part.version;  // Comes again, after a void step.
  }
  return true;
}

// Whether the repair copies from another host, which may take any time.
bool World::fetches(const Worker& worker, const trainer::Repair& work) const {
  return setup_.hosts && work.order.act == wire::Act::kReceive &&
         host_named(work.order.source.host) != worker.agent;
}

// The held part from which the worker receives its private part; null: it receives none.
const World::PrivatePart* World::private_source(const Worker& worker, const trainer::Repair& work) {
  const auto& source = work.order.private_source;
  if (!setup_.holders || source.holder == kNoRank) return nullptr;
  return &held(host_named(source.host), source.holder, worker.rank);
}

bool World::begin(Index index, const trainer::Arrive&) {
  const bool has_arrived = arrive(workers_[index]);
  const Worker& worker = workers_[index];
  if (has_arrived && complete(worker) && !is_out_of_sight(worker)) check_copies(worker);
  return has_arrived;
}

bool World::begin(Index index, const trainer::Update&) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  wrote(worker);
  own.updating = true;
  return true;
}

// Counts the worker's arrival at the group's next operation. False: the group has ended.
bool World::arrive(Worker& worker) {
  const Arena& own = arena(worker);
  Group& group = groups_[worker.joined];
  if (group.aborted) return false;
  if (group.operations.size() <= worker.operation) group.operations.resize(worker.operation + 1);
  auto& operation = group.operations[worker.operation];
  if (operation.arrivals > 0 && operation.step != own.version + 1) {
    checkers_.violate("S2: ranks of one generation are in different steps");
  }
  operation.step = own.version + 1;
  // A rank on a host that was cut off may come after it was replaced, and find all arrivals there.
  if (++operation.arrivals < setup_.ranks || is_out_of_sight(worker)) return true;
  checkers_.gathered(worker.joined);
  return true;
}

// ---- Second halves ------------------------------------------------------------------------------

void World::end(Index index, const trainer::Repair& work) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  wrote(worker);
  std::string error;
  if (work.order.act == wire::Act::kFinish) {
    if (own.updating) finish_update(own);
    settle(worker);
  } else if (work.order.act == wire::Act::kBegin) {
    own.version = own.staged = 0;
    own.content = kInitialContent;
  } else {
    const wire::Location& from = work.order.source;
    if (fetches(worker, work) && worker.repair_stopped) {  // Whatever has been copied by now.
      return tell_trainer(index, trainer::Repaired{holding(worker), "stopped", true});
    }
    const Arena& source = arena(host_named(from.host), from.holder);
    const PrivatePart* part = private_source(worker, work);
    // If the job has gone on meanwhile, the source has another version, or is gone.
    const bool is_late =
        fetches(worker, work) && (source.version != work.version || source.updating);
    const bool lacks = source.version == kNoVersion || (part && part->version == kNoVersion);
    if (lacks && wipes_ > 0) {
      source_lost_ = true;
      error = kSourceLost;
    } else if (is_late) {
      error = "the source is at another version";
    } else {
      checkers_.copies(source, work.version);
      if (part && !part->has(work.version))
        checkers_.violate("S7: half a private part is received");
      own.version = own.staged = source.version;
      own.content = source.content;
    }
  }
  tell_trainer(index, trainer::Repaired{holding(worker), error});
}

void World::end(Index index, const trainer::Unstage&) {
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  wrote(worker);
  own.staged = own.version;  // The step is void.
  settle(worker);
}

void World::end(Index index, const trainer::JoinGroup& work) {
  Worker& worker = workers_[index];
  const bool formed = worker.joined == work.generation && has_formed(worker);
  const bool linked = is_linked(worker);
  if (!formed || !seed(worker)) {
    const auto held = holding(worker).held;
    return tell_trainer(index, trainer::NotFormed{false, "the group has ended", held, linked});
  }
  tell_trainer(index,
               trainer::Formed{groups_[worker.joined].aborted, linked,
                               setup_.holders && (linked || !setup_.hosts), holding(worker).held});
}

void World::end(Index index, const trainer::LeaveGroup&) {
  Worker& worker = workers_[index];
  if (worker.joined != 0) groups_[worker.joined].aborted = true;
  worker.joined = 0;
  tell_trainer(index, trainer::LeftGroup{});
}

void World::end(Index index, const trainer::AwaitSums&) {
  Worker& worker = workers_[index];
  if (!complete(worker)) return tell_trainer(index, trainer::SumsDone{trainer::Outcome::kStopped});
  Arena& own = arena(worker);
  checkers_.wrote(own, worker.process);  // Not wrote(): it was written before it said "parked".
  own.gradient = groups_[worker.joined].operations[worker.operation].sum;
  ++worker.operation;
  tell_trainer(index, trainer::SumsDone{trainer::Outcome::kDone});
}

void World::end(Index index, const trainer::Stage& work) {
  Arena& own = arena(workers_[index]);
  wrote(workers_[index]);
  own.staged = work.version;
  tell_trainer(index, trainer::Staged{});
}

void World::end(Index index, const trainer::ExchangeCopies& work) {
  Worker& worker = workers_[index];
  const bool done = worker.joined != 0 && has_come(worker) &&
                    (!groups_[worker.joined].aborted || choices_.pick(2) == 0);
  for (const Rank ward : wards(worker)) {
    if (done) held(host_of(worker), worker.rank, ward) = {work.version - 1, work.version};
  }
  tell_trainer(index,
               trainer::CopiesExchanged{done ? trainer::Outcome::kDone : trainer::Outcome::kStopped,
                                        holding(worker).held});
}

// P50: once a step is committed, each private part is on two hosts, unless one is lost just now.
void World::check_copies(const Worker& worker) {
  const bool wiped = (struck_ & bit(Fault::kWipe)) != 0;
  for (Rank ward = 0; setup_.holders && !wiped && ward < setup_.ranks; ++ward) {
    const Rank holder = holder_of(worker, ward);
    if (holder == kNoRank) return;
    const Index host = worker.host_of[static_cast<std::size_t>(holder)];
    if (setup_.hosts && agents_[host].is_host_lost) continue;
    if (held(host, holder, ward).has(arena(worker).version + 1)) continue;
    checkers_.violate("P50: a step is committed, and a private part of it has no holder");
  }
}

void World::end(Index index, const trainer::Arrive&) {
  Worker& worker = workers_[index];
  // A rank that is cut off when its group ends does not learn that all have arrived.
  const bool done = complete(worker) && !is_cut_off(worker);
  if (done) ++worker.operation;
  tell_trainer(index,
               trainer::Arrived{done ? trainer::Outcome::kDone : trainer::Outcome::kStopped});
}

void World::end(Index index, const trainer::Update&) {
  finish_update(arena(workers_[index]));
  if (setup_.holders) drop_the_rest(workers_[index]);
  settle(workers_[index]);
  tell_trainer(index, trainer::Updated{});
}

// ---- The program --------------------------------------------------------------------------------

void World::end(Index index, const trainer::Return& result) {
  using What = trainer::Return::What;
  Worker& worker = workers_[index];
  Arena& own = arena(worker);
  check_told(worker, result.what);
  switch (result.what) {
    case What::kJoined:
    case What::kCommitted:
    case What::kCommittedByPlan:
    case What::kVoid:
      if (own.version == setup_.steps) return tell_trainer(index, trainer::EndCalled{});
      return tell_trainer(index,
                          trainer::StepBegun{worker.joined != 0 && groups_[worker.joined].aborted});
    case What::kBegun:
    case What::kBegunAnew:
      wrote(worker);
      worker.began_at = own.version;
      if (arrive(worker)) {
        groups_[worker.joined].operations[worker.operation].sum +=
            contribution(own.content, worker.rank, own.version + 1);
        own.gradient = kGarbage;
      }
      return tell_trainer(index, trainer::StepEnded{});
    case What::kTooLate:
      return checkers_.violate("P33: a rank has a step to make, but another has ended");
    case What::kFailed:
      return fail_training(index, result.reason);
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

// Checks what the program is told about a step that it has begun.
void World::check_told(const Worker& worker, trainer::Return::What what) {
  using What = trainer::Return::What;
  const Arena& own = arena(worker);
  const bool begins = what == What::kBegun || what == What::kBegunAnew;
  if (begins && own.staged != own.version) {
    checkers_.violate("S7: a step begins while another one is staged");
  }
  const bool made = what == What::kCommitted || what == What::kCommittedByPlan;
  if ((made || what == What::kVoid) && own.version != worker.began_at + (made ? 1 : 0)) {
    checkers_.violate("S5: a program was told that a step was made which is void, or the reverse");
  }
}

void World::fail_training(Index index, const wire::Reason& reason) {
  workers_[index].program = Program::kFailed;
  workers_[index].work.clear();
  if (workers_[index].over) workers_[index].leaving = 1;  // The job is over: no need to report.
  tell_member(index, member::TrainingFailed{reason});
}

void World::finish_update(Arena& arena) {
  arena.version = arena.staged;
  arena.content = updated(arena.content, arena.gradient, arena.version);
  arena.updating = false;
  checkers_.committed(arena);
}

}  // namespace holdfast::sim
