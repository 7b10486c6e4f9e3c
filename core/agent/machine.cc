#include "core/agent/machine.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/assert.h"

namespace holdfast::agent {

using wire::Reason;

namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLastPause = std::chrono::seconds(2);
constexpr Generation kForNoStep = std::numeric_limits<Generation>::max();
// The exit code of a process that its agent has killed.
constexpr std::int32_t kKilled = 128 + 9;

// The exit code that a shell would report: 0..255, or 128 + signal.
std::int32_t exit_code(const wire::Ending& ending) {
  switch (ending.kind) {
    case wire::Ending::Kind::kExited:
      return ending.code;
    case wire::Ending::Kind::kSignalled:
      return 128 + ending.code;
    case wire::Ending::Kind::kWasStopped:
    case wire::Ending::Kind::kWasSilent:
      return kKilled;
    default:
      return 255;
  }
}

bool is_told(const Died& e) {
  return e.ending.kind != wire::Ending::Kind::kUnknown;
}

Reason how_it_ended(const Died& e, const std::string& node_id) {
  return {.kind = Reason::Kind::kProcessEnded,
          .ending = e.ending,
          .node_id = node_id,
          .detail = e.error};
}

bool ended_well(const wire::Ending& ending) {
  return ending == wire::Ending{wire::Ending::Kind::kExited, 0};
}

template <class E>
constexpr std::size_t kEvent = event_index<Event, E>();

using S = State;
constexpr Transition<State> kTransitions[] = {
    {S::kRunning, kEvent<Received>, S::kDone, "JobEnded: all is well"},
    {S::kRunning, kEvent<Received>, S::kEnding, "JobEnded: the job has failed; or Refused"},
    {S::kRunning, kEvent<Died>, S::kDone,
     "the scheduler has ended well; or it has heard of the job's end"},
    {S::kRunning, kEvent<Died>, S::kEnding, "too often, or twice by the same exception"},
    {S::kRunning, kEvent<Died>, S::kExited, "the last one; all workers had ended well"},
    {S::kRunning, kEvent<SpawnFailed>, S::kEnding},
    {S::kRunning, kEvent<SpawnFailed>, S::kExited, "of a spare; all workers had ended well"},
    {S::kRunning, kEvent<Interrupted>, S::kEnding},
    {S::kRunning, kEvent<GraceOver>, S::kEnding, "workers or scheduler have ended, the others not"},
    {S::kRunning, kEvent<GraceOver>, S::kExited},
    {S::kRunning, kEvent<Started>, S::kExited, "it has no places"},
    {S::kRunning, kEvent<LinkUp>, S::kExited, "the scheduler has heard that all have ended well"},
    {S::kRunning, kEvent<PauseOver>, S::kExited, "all had ended well; no scheduler is in reach"},
    {S::kRunning, kEvent<Interrupted>, S::kExited, "all had ended well; other hosts go on"},
    {S::kRunning, kEvent<Received>, S::kExited, "Places: it is drained, and nothing ran"},
    {S::kRunning, kEvent<OutOfReach>, S::kEnding, "another host runs the scheduler"},
    {S::kDone, kEvent<Received>, S::kEnding, "JobEnded: the job has failed; or Refused"},
    {S::kDone, kEvent<Died>, S::kEnding, "twice by the same exception, as is known late"},
    {S::kDone, kEvent<Died>, S::kExited, "the last one"},
    {S::kDone, kEvent<Received>, S::kExited, "JobEnded; nothing ran"},
    {S::kDone, kEvent<SpawnFailed>, S::kEnding},
    {S::kDone, kEvent<SpawnFailed>, S::kExited, "of a spare; nothing else ran"},
    {S::kDone, kEvent<Interrupted>, S::kEnding},
    {S::kDone, kEvent<GraceOver>, S::kEnding},
    {S::kDone, kEvent<GraceOver>, S::kExited},
    {S::kEnding, kEvent<Died>, S::kExited, "the last one"},
    {S::kEnding, kEvent<Received>, S::kExited, "JobEnded, or Refused; nothing ran"},
    {S::kEnding, kEvent<SpawnFailed>, S::kExited, "nothing else ran"},
    {S::kEnding, kEvent<Interrupted>, S::kExited},
    {S::kEnding, kEvent<GraceOver>, S::kExited},
    {S::kEnding, kEvent<PauseOver>, S::kExited, "no scheduler has said that it has heard of it"},
};

}  // namespace

std::span<const Transition<State>> transitions() {
  return kTransitions;
}

const char* name(State state) {
  constexpr std::array<const char*, kStates> kNames = {"running", "done", "ending", "exited"};
  return kNames[static_cast<std::size_t>(state)];
}

// Any event may lead to kExited, if it is the last that the agent waits for; the table lists the
// usual ones.
void Machine::enter(State next) {
  HF_ASSERT(next == State::kExited || is_listed<State>(kTransitions, state_, event_, next));
  state_ = next;
}

Machine::Machine(Options options)
    : options_(std::move(options)), prng_(options_.seed), rehearsals_(options_.rehearsals) {
  if (options_.runs_scheduler) {
    // If the agent continues a job, its first scheduler counts as a successor, which has a journal.
    places_.push_back({.node_id = kSchedulerNode,
                       .role = Role::kScheduler,
                       .attempt = options_.continues ? 1U : 0U});
  }
  for (const auto& node_id : options_.workers) places_.push_back({.node_id = node_id});
}

Actions Machine::step(const Event& event) {
  event_ = event.index();
  if (state_ != State::kExited) {
    std::visit([&](const auto& e) { on(e); }, event);
    maybe_rehearse();
    if (!spares_told_ && link_ == Link::kUp && state_ == State::kRunning) tell_state();
    maybe_exit();
  }
  // Messages go first: starting a process takes milliseconds, while other ranks wait for the
  // messages.
  std::stable_partition(actions_.begin(), actions_.end(),
                        [](const Action& action) { return std::holds_alternative<Send>(action); });
  return std::exchange(actions_, {});
}

void Machine::on(const Started&) {
  for (auto& place : places_) start(place);
  if (options_.bound_spares) {
    for (const auto& node_id : options_.workers) add_spare(node_id);
  } else {
    for (std::int32_t i = 0; i < options_.spares; ++i) add_spare("");
  }
}

void Machine::start(Place& place) {
  place.process = next_process_++;
  place.incarnation = prng_.next();
  ++place.attempt;
  running_.insert(place.process);
  Spawn spawn{place.process, place.role,        place.node_id,
              place.attempt, place.incarnation, place.predecessor};
  const auto& own = options_.workers;
  spawn.takes_over =
      place.role == Role::kWorker && std::find(own.begin(), own.end(), place.node_id) == own.end();
  actions_.push_back(spawn);
}

void Machine::add_spare(const std::string& node_id) {
  const Spare spare{next_process_++, prng_.next(), node_id};
  spares_.push_back(spare);
  spares_told_ = false;
  running_.insert(spare.process);
  Spawn spawn{spare.process, Role::kSpare, node_id, 0, spare.incarnation};
  spawn.prepares = waits_for_places();
  actions_.push_back(spawn);
}

// Whether a worker still trains that a spare could replace. `spare_of`: the only place that the
// spare may take; empty: any.
bool Machine::is_needed(const std::string& spare_of) const {
  if (waits_for_places()) return state_ == State::kRunning;
  return std::any_of(places_.begin(), places_.end(), [&](const Place& p) {
    return p.role == Role::kWorker && !p.done && (spare_of.empty() || spare_of == p.node_id);
  });
}

// The spare for this place: the oldest that is ready, else the oldest; end(): none.
std::deque<Machine::Spare>::iterator Machine::spare_for(const Place& place) {
  if (place.role == Role::kScheduler) return spares_.end();
  const auto may_take = [&](const Spare& s) {
    return s.node_id.empty() || s.node_id == place.node_id;
  };
  const auto ready = std::find_if(spares_.begin(), spares_.end(),
                                  [&](const Spare& s) { return s.is_ready && may_take(s); });
  if (ready != spares_.end()) return ready;
  return std::find_if(spares_.begin(), spares_.end(), may_take);
}

// The place has no process now: a spare gets the place, else a new process.
void Machine::give(Place& place) {
  const auto found = spare_for(place);
  if (found == spares_.end()) return start(place);
  const Spare spare = *found;
  spares_.erase(found);
  place.process = spare.process;
  place.incarnation = spare.incarnation;
  ++place.attempt;
  actions_.push_back(Promote{spare.process, place.node_id, place.attempt, place.predecessor});
  owed_.push_back({pause(kSparePatience), generation_, spare.node_id});
}

void Machine::start_owed(const std::function<bool(const Owed&)>& due) {
  std::vector<std::string> start;
  std::erase_if(owed_, [&](const Owed& owed) {
    if (!due(owed)) return false;
    start.push_back(owed.node_id);
    return true;
  });
  if (state_ != State::kRunning) return;
  for (const auto& node_id : start) {
    if (is_needed(node_id)) add_spare(node_id);
  }
}

void Machine::end_spares() {
  for (const auto& spare : spares_) {
    if (!is_needed(spare.node_id)) actions_.push_back(Kill{spare.process, false});
  }
}

std::uint64_t Machine::pause(Duration how_long) {
  actions_.push_back(WantPause{next_pause_, how_long});
  return next_pause_++;
}

// A pause that doubles with each time, up to kLastPause.
std::uint64_t Machine::pause(std::int32_t times) {
  Duration how_long = kFirstPause;
  for (; times > 0 && how_long < kLastPause; --times) how_long *= 2;
  return pause(std::min(how_long, kLastPause));
}

void Machine::on(const PauseOver& e) {
  gave_up_ = gave_up_ || e.pause == last_word_;
  if (state_ != State::kRunning) return;
  start_owed([&](const Owed& owed) { return owed.pause == e.pause; });
  if (rehearsals_.over(e.pause)) rehearsal_takes_too_long();
  for (auto& place : places_) {
    if (place.pause != e.pause) continue;
    place.pause = 0;
    give(place);
    tell_state();
  }
}

void Machine::on(const SpareReady& e) {
  for (auto& spare : spares_) {
    if (spare.process != e.process || spare.is_ready) continue;
    spare.is_ready = true;
    spares_told_ = false;
  }
}

// A stopped process holds up all ranks and may never go on. So it is killed and then replaced like
// a dead one: alive, it could wake up and write into its successor's arena.
void Machine::on(const Looked& e) {
  std::map<Process, int> counts;
  for (const Process process : e.stopped) {
    if (!running_.contains(process) || process == rehearsals_.under_way()) continue;
    // If this agent has missed a look, it stood still itself: count anew.
    const int looks = 1 + (e.on_time ? stopped_[process] : 0);
    counts[process] = looks;
    if (looks < kStoppedLooks || !ended_.emplace(process, wire::Ending::Kind::kWasStopped).second)
      continue;
    if (is_at_a_place(process)) call_off_rehearsals();
    actions_.push_back(Kill{process, false});
  }
  stopped_ = std::move(counts);
}

void Machine::on(const Died& died) {
  if (died.process == rehearsals_.under_way()) return rehearsal_died(died);
  Died e = died;
  heard_end_ = heard_end_ || e.job_ended;
  const auto ended = ended_.find(e.process);
  if (ended != ended_.end()) e.ending = {ended->second, 0};  // The agent itself has killed it.
  if (is_told(died)) {
    running_.erase(e.process);
    if (ended != ended_.end()) ended_.erase(ended);
  }
  const auto current = std::find_if(places_.begin(), places_.end(),
                                    [&](const Place& p) { return p.process == e.process; });
  hear_of_end(e, current != places_.end() ? current->node_id : "");
  if (current != places_.end()) {
    place_died(*current, e);
  } else if (std::any_of(spares_.begin(), spares_.end(),
                         [&](const Spare& s) { return s.process == e.process; })) {
    spare_died(e);
  } else if (const auto former =
                 std::find_if(places_.begin(), places_.end(),
                              [&](const Place& p) { return p.previous == e.process; });
             former != places_.end() && is_told(e) && former->ending != e.ending) {
    // The lifeline told of the death at once. Now that the memory is freed, the kernel says why.
    former->ending = e.ending;
    say_end(*former, e);
    if (e.process == blamed_) {
      result_ = e.job_ended ? failed(e, former->node_id) : too_often(*former);
    }
    tell_state();
    if (repeats_its_error(*former, e)) fail(for_its_error(*former, e));
  }
}

// If a process has heard of the job's end, its agent takes that for true, because the agent itself
// may be cut off (P26). A successor could only hear the same. If the job has failed, the scheduler
// may still say why.
void Machine::hear_of_end(const Died& e, const std::string& node_id) {
  if (!e.job_ended || state_ != State::kRunning) return;
  receive(wire::JobEnded{true, {}});
  if (*e.job_ended) return;
  blamed_ = e.process;
  result_ = failed(e, node_id);
}

// A process that has heard of the job's failure may have ended with exit code 0 all the same.
Exit Machine::failed(const Died& e, const std::string& node_id) {
  const std::int32_t code = exit_code(e.ending);
  return {code != 0 ? code : 1, how_it_ended(e, node_id), node_id};
}

void Machine::place_died(Place& place, const Died& e) {
  if (place.role == Role::kWorker) call_off_rehearsals();
  place.previous = std::exchange(place.process, 0);
  place.ending = e.ending;
  place.predecessor = {e.ending, e.error, true};
  place.detected_ns = e.detected_ns;
  place.not_started = 0;
  if (place.role == Role::kScheduler && ended_well(e.ending) && link_ != Link::kNever) {
    if (state_ == State::kRunning) enter(State::kDone);
  }
  if (ended_well(e.ending) || state_ == State::kDone) {
    place.done = true;
    tell_state();
    end_spares();
    // The scheduler or the workers have ended. The others end by themselves, unless the workers
    // never reached the scheduler.
    if (place.role == Role::kScheduler || workers_done()) actions_.push_back(WantGrace{});
    return;
  }
  if (is_ending()) return;
  if (is_told(e)) say_end(place, e);
  const bool repeats = repeats_its_error(place, e);
  if (++place.failures > options_.max_restarts) {
    blamed_ = e.process;
    return fail(too_often(place));
  }
  if (repeats) return fail(for_its_error(place, e));
  // A scheduler that fails at once, each time, must not keep a processor busy.
  if (place.role == Role::kScheduler && place.failures > 1) {
    place.pause = pause(place.failures - 2);
  } else {
    give(place);
  }
  tell_state();
}

// Requires that the kind of ending is known.
void Machine::say_end(const Place& place, const Died& e) {
  if (is_ending() || ended_well(e.ending)) return;
  actions_.push_back(Say{how_it_ended(e, place.node_id)});
}

// Whether the same exception has come again at the same step, or certainly would. Then it comes
// from the program or its data, and no further process would fare better.
bool Machine::repeats_its_error(Place& place, const Died& e) {
  if (e.error.empty() || is_ending()) return false;
  const bool repeats = e.is_final || (e.error == place.error && e.version == place.error_version);
  place.error = e.error;
  place.error_version = e.version;
  return repeats;
}

void Machine::spare_died(const Died& e) {
  const auto spare = std::find_if(spares_.begin(), spares_.end(),
                                  [&](const Spare& s) { return s.process == e.process; });
  const std::string node_id = spare->node_id;
  spares_.erase(spare);
  spares_told_ = false;
  if (state_ != State::kRunning || !is_needed(node_id)) return;
  if (++spare_failures_ > options_.max_restarts) {
    actions_.push_back(
        Say{{.kind = Reason::Kind::kSparesGivenUp, .ending = e.ending, .count = spare_failures_}});
    return;
  }
  add_spare(node_id);
}

void Machine::on(const SpawnFailed& e) {
  running_.erase(e.process);
  if (e.process == rehearsals_.under_way()) return rehearsal_not_started(e);
  const auto spare = std::find_if(spares_.begin(), spares_.end(),
                                  [&](const Spare& s) { return s.process == e.process; });
  if (spare != spares_.end()) {
    actions_.push_back(Say{{.kind = Reason::Kind::kSpareNotStarted, .detail = e.why}});
    if (++spare_failures_ <= options_.max_restarts) {
      owed_.push_back({pause(spare_failures_ - 1), kForNoStep, spare->node_id});
    }
    spares_.erase(spare);
    spares_told_ = false;
    return;
  }
  const auto place = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& p) { return p.process == e.process; });
  if (place != places_.end()) {
    place->process = 0;
    // What keeps the first process of a place from starting is taken for permanent; later it may
    // pass.
    if (!is_ending() && place->attempt > 1 && ++place->not_started < kSpawnTries) {
      place->pause = pause(place->not_started - 1);
      return tell_state();
    }
  }
  const std::int32_t tries = place != places_.end() ? place->not_started : 0;
  fail({127, {.kind = Reason::Kind::kNotStarted, .count = tries, .detail = e.why}, ""});
}

void Machine::on(const LinkUp& e) {
  link_ = Link::kUp;
  is_far_ = e.is_far;
  tell_state();
  // The scheduler may not have heard of the failure yet.
  if (result_.code != 0 && !workers_leave_) send(wire::Failed{result_.reason});
  if (is_far_) send(wire::Heartbeat{});  // The link may be lost before the next beat.
}

void Machine::send(wire::Message message) {
  if (link_ == Link::kUp) actions_.push_back(Send{std::move(message)});
}

void Machine::tell_state() {
  wire::AgentState state{
      .job = options_.job, .agent_id = options_.agent_id, .host = options_.host, .places = {}};
  for (const auto& place : places_) {
    if (place.role == Role::kScheduler) continue;
    state.places.push_back({place.node_id, place.incarnation, place.attempt, place.process != 0,
                            place.ending, place.detected_ns});
  }
  state.takes = static_cast<std::uint32_t>(std::max(0, options_.takes));
  for (const auto& spare : spares_) state.spares.push_back({spare.node_id, spare.is_ready});
  state.rehearsals = rehearsals_.verdicts();
  told_ = link_ == Link::kUp;
  spares_told_ = told_;
  send(std::move(state));
}

void Machine::on(const Received& e) {
  std::visit([&](const auto& message) { receive(message); }, e.message);
}

void Machine::receive(const wire::JobProgress& m) {
  if (rehearsals_.hear_of_step(m.generation)) end_rehearsal();
  if (m.version <= version_) return;
  version_ = m.version;
  generation_ = m.generation;
  spare_failures_ = 0;
  for (auto& place : places_) place.failures = 0;
  // Progress of an older generation may come late. It starts no spare.
  start_owed([&](const Owed& owed) { return owed.after < m.generation; });
}

void Machine::receive(const wire::JobEnded& m) {
  heard_end_ = true;
  if (is_ending()) return;
  if (m.success) {  // Processes end by themselves; one that hangs has its grace period.
    if (state_ == State::kDone) return;
    enter(State::kDone);
    if (waits_for_places()) end_spares();  // No place needs the spares any more.
    actions_.push_back(WantGrace{});
    return;
  }
  const auto failed = std::find_if(places_.begin(), places_.end(), [](const Place& p) {
    return p.role == Role::kWorker && p.previous != 0 && !ended_well(p.ending);
  });
  const bool known = failed != places_.end();
  fail({known ? exit_code(failed->ending) : 1, m.reason, known ? failed->node_id : ""});
}

void Machine::receive(const wire::Evict& m) {
  for (const auto& place : places_) {
    if (place.node_id == m.node_id && place.incarnation == m.incarnation && place.process != 0) {
      call_off_rehearsals();
      ended_.emplace(place.process, wire::Ending::Kind::kWasSilent);
      actions_.push_back(Kill{place.process, false});
    }
  }
}

void Machine::receive(const wire::Places& m) {
  if (state_ != State::kRunning) return;
  const std::set<std::string> granted(m.node_ids.begin(), m.node_ids.end());
  const std::int32_t dropped = drop_others(granted);
  const bool drains = m.drains && !options_.drained;
  options_.drained = options_.drained || m.drains;
  options_.takes = options_.drained ? 0 : options_.takes + dropped;
  if (dropped > 0 || drains) {
    actions_.push_back(Say{{.kind = m.drains ? Reason::Kind::kDrained : Reason::Kind::kGivenAway,
                            .count = dropped,
                            .total = worker_places()}});
  }
  if (dropped > 0) wait_for_places(dropped);
  const bool takes = take_lacking(granted);
  if (dropped > 0 || drains) end_spares();
  if (dropped > 0 || drains || takes) tell_state();
}

// Ends the processes of places that another host has now. Returns the number of these places.
std::int32_t Machine::drop_others(const std::set<std::string>& granted) {
  return static_cast<std::int32_t>(std::erase_if(places_, [&](const Place& place) {
    if (place.role != Role::kWorker || granted.contains(place.node_id)) return false;
    call_off_rehearsals();
    if (place.process != 0) actions_.push_back(Kill{place.process, false});
    return true;
  }));
}

bool Machine::take_lacking(std::set<std::string> granted) {
  for (const auto& place : places_) granted.erase(place.node_id);
  if (!granted.empty()) call_off_rehearsals();
  for (const auto& node_id : granted) {
    places_.push_back({.node_id = node_id});
    options_.takes -= options_.takes > 0 ? 1 : 0;
    give(places_.back());
  }
  return !granted.empty();
}

void Machine::receive(const wire::Refused& m) {
  gave_up_ = true;  // The scheduler does not listen to it.
  fail({1, m.reason, ""});
}

// If the message changes a book that this agent does not have, something between was lost: ask for
// the whole book.
void Machine::receive(const wire::Addresses& m) {
  if (m.base != 0) call_off_rehearsals();  // A change, not a first book: a rank was replaced.
  auto book = book_.after(m);
  if (!book) {
    if (m.base != 0) send(wire::AskAddresses{});
    return;
  }
  book_ = *std::move(book);
  actions_.push_back(LeaveAddresses{book_.whole()});
}

// The agent has given places away, so it becomes a spare host for that many.
void Machine::wait_for_places(std::int32_t places) {
  options_.spare_host = true;
  if (!waits_for_places() || options_.bound_spares) return;
  while (static_cast<std::int32_t>(spares_.size()) < places) add_spare("");
}

// The job fails because the processes of a place fail each time. Exit code 0 in the midst of the
// training is a failure, too.
Exit Machine::too_often(const Place& place) const {
  const std::int32_t code = exit_code(place.ending);
  return {code != 0 ? code : 1,
          {.kind = Reason::Kind::kTooOften,
           .ending = place.ending,
           .total = options_.max_restarts,
           .version = static_cast<Version>(place.failures),
           .node_id = place.node_id,
           .detail = options_.max_restarts_option},
          place.node_id};
}

Exit Machine::for_its_error(const Place& place, const Died& e) const {
  if (e.is_final) return failed(e, place.node_id);
  return {exit_code(place.ending),
          {.kind = Reason::Kind::kTwice,
           .ending = place.ending,
           .version = place.error_version,
           .node_id = place.node_id,
           .detail = place.error},
          place.node_id};
}

}  // namespace holdfast::agent
