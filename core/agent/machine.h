// What an agent does with the processes of its host: starts, replaces, promotes, gives up.
//
// Pure: no clock, no I/O, no processes. A place of the job is given to one process at a time, and
// each process that gets it has a higher attempt number than those before. Why it is right:
// docs/protocol/recovery.md, "The agent".
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/prng.h"
#include "core/address_book.h"
#include "core/agent/rehearsals.h"
#include "core/table.h"
#include "wire/messages.h"

namespace holdfast::agent {

struct Options {
  std::string job;
  std::string agent_id;
  std::string host;
  std::vector<std::string> workers;  // Node ids of this host's places.
  std::int32_t world_size = 0;       // Of the whole job.
  std::uint64_t seed = 0;            // Seed of the incarnations: a random one for each agent.
  // The agent starts a scheduler. With etcd and several hosts, every agent does so: one scheduler
  // serves, and the others stand by.
  bool runs_scheduler = false;
  bool stands_by = false;  // With etcd: the job's first scheduler is on another host.
  bool continues = false;  // Its scheduler goes on from the journal of a dead agent's scheduler.
  std::int32_t spares = 0;
  // The agent has no places until the scheduler gives it those of a lost host; `spares` wait for
  // them.
  bool spare_host = false;
  std::int32_t takes = 0;         // How many places of lost hosts it would take.
  bool drained = false;           // It takes no places any more, and ends once it has none.
  bool bound_spares = false;      // One spare bound to each of `workers`, in place of `spares`.
  std::int32_t max_restarts = 3;  // Restarts of one place, or of spares, with no step between.
  std::string max_restarts_option = "--max_restarts";  // The option's name, for messages.
  RehearsalOptions rehearsals = {};
};

inline constexpr const char* kSchedulerNode = "scheduler";

// How often the shell looks for stopped processes (SIGSTOP), and in how many looks in a row a
// process must be found stopped before it is replaced: a tool may stop a process for a moment.
inline constexpr Duration kLookEvery = std::chrono::milliseconds(150);
inline constexpr int kStoppedLooks = 4;

// How often in a row the start of a process is tried: memory or process numbers may be lacking for
// a moment only.
inline constexpr std::int32_t kSpawnTries = 5;

// After a spare was promoted, a new one is started when the job has made a step, or after this
// time: until then the recovery needs the processors.
inline constexpr Duration kSparePatience = std::chrono::seconds(1);

// How long an agent whose processes have all ended waits for a scheduler. That is long, because the
// hosts of a job may be started one after another.
inline constexpr Duration kLastWord = std::chrono::seconds(30);
// How long it waits for the answer to a failure that it reports, if it has reached a scheduler
// before.
inline constexpr Duration kAnswer = std::chrono::seconds(5);

// What may happen.
struct Started {};
struct Died {  // A process has died. Its lifeline may tell so before its exit code is known.
  Process process = 0;
  wire::Ending ending;  // kUnknown: it is dying; a second Died says how it ended.
  std::uint64_t detected_ns = 0;
  std::string error = {};        // The exception that ended it, in its own words; empty: none did.
  Version version = kNoVersion;  // The last step that it has made; kNoVersion: unknown.
  // Set if the process had heard of the job's end; true: the job has ended well.
  std::optional<bool> job_ended = {};
  // `error` says what the program has to change, so every later process would end with it.
  bool is_final = false;
  std::optional<std::string> verdict = {};  // What a rehearsal has left as its verdict: any bytes.
};
struct SpawnFailed {
  Process process = 0;
  std::string why;
};
struct PauseOver {
  std::uint64_t pause = 0;
};
struct Looked {  // Every kLookEvery.
  // Running processes that a signal has stopped; not those that a debugger has stopped.
  std::set<Process> stopped;
  bool on_time = true;  // No look was missed, so the agent itself was not stopped.
};
struct SpareReady {  // The spare waits, and could take a place at once.
  Process process = 0;
};
struct LinkUp {  // Connected to the scheduler.
  // Agents of other hosts may be connected, too. Then each agent sends heartbeats.
  bool is_far = false;
};
struct LinkDown {};
struct Received {
  wire::Message message;
};
struct Interrupted {  // The user, or whatever started the agent, wants the job to end.
  std::int32_t signal = 0;
};
struct GraceOver {};  // The grace period of processes that were asked to end is over.
struct OutOfReach {   // No scheduler has been in reach for HOLDFAST_SCHEDULER_TIMEOUT.
  std::string why;
};
using Event = std::variant<Started, Died, SpawnFailed, PauseOver, Looked, LinkUp, LinkDown,
                           Received, Interrupted, GraceOver, OutOfReach, SpareReady>;
inline constexpr const char* kEventNames[] = {
    "started",   "died",     "spawn failed", "pause over", "looked",       "link up",
    "link down", "received", "interrupted",  "grace over", "out of reach", "spare ready"};
static_assert(std::size(kEventNames) == std::variant_size_v<Event>);

// What must be done.
enum class Role : std::uint8_t { kScheduler, kWorker, kSpare, kRehearsal };
// How the last process of a place ended. kUnknown: not known, or there was none.
struct Predecessor {
  wire::Ending ending;
  std::string error;  // The exception that ended it; empty: none did.
  bool there_was = false;
};
struct Spawn {
  Process process = 0;
  Role role = Role::kWorker;
  std::string node_id;  // Empty for a spare of any place.
  std::uint64_t attempt = 0;
  Incarnation incarnation = 0;
  Predecessor predecessor = {};
  bool takes_over = false;  // The place was another host's at first.
  bool prepares = false;    // A spare for places whose state is not on this host yet.
};
struct Promote {  // This waiting spare becomes `node_id`.
  Process process = 0;
  std::string node_id;
  std::uint64_t attempt = 0;
  Predecessor predecessor = {};
};
struct Send {
  wire::Message message;
};
struct Kill {
  Process process = 0;
  bool gently = false;  // true: SIGTERM; after GraceOver the machine asks for SIGKILL.
};
struct WantGrace {};  // Deliver GraceOver once, after the shell's grace period.
struct WantPause {    // Deliver PauseOver once, `how_long` later.
  std::uint64_t pause = 0;
  Duration how_long{};
};
struct LeaveAddresses {  // Leave this book for the workers of this host, in place of the last.
  wire::Addresses addresses;
};
struct Say {
  wire::Reason reason;
};
struct Log {  // Write it only into the log that the reason names.
  wire::Reason reason;
};
// No process of this agent runs, but other hosts have yet to hear of that. The agent stays for
// `at_most`.
struct Stay {
  std::int32_t code = 0;  // As in Exit.
  wire::Reason reason;
  Duration at_most{};
};
struct Exit {  // End the agent, once its messages are sent. No process of it runs.
  std::int32_t code = 0;
  wire::Reason reason;      // For a failure: the first that was not recovered from.
  std::string failed_node;  // The node whose log tells more; may be empty.
  bool drained = false;     // The job goes on without this agent.
};
using Action = std::variant<Spawn, Promote, Send, Kill, WantGrace, WantPause, Say, Exit,
                            LeaveAddresses, Stay, Log>;
using Actions = std::vector<Action>;

// How far the agent is. A state is only followed by later ones.
enum class State : std::uint8_t {
  // A process that dies is replaced. The state stays when all processes have ended well and other
  // hosts go on.
  kRunning,
  kDone,  // The job has ended, well as far as is known: processes that end are not replaced.
  // Nothing is replaced, all processes are ended, and then the scheduler has to hear of it.
  kEnding,
  kExited,
};
inline constexpr std::size_t kStates = 4;
[[nodiscard]] const char* name(State state);
// {state × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<State>> transitions();

// One place of the job as its agent holds it.
struct Place {
  std::string node_id;
  Role role = Role::kWorker;
  Process process = 0;   // 0: no process.
  Process previous = 0;  // The process that died last.
  Incarnation incarnation = 0;
  std::uint64_t attempt = 0;
  bool done = false;             // The process ended with exit code 0.
  std::int32_t failures = 0;     // Since the last step was made.
  std::uint64_t pause = 0;       // The next process waits for the end of this pause; 0: none.
  std::int32_t not_started = 0;  // How often in a row the process could not be started.
  wire::Ending ending;           // How `previous` ended.
  Predecessor predecessor;       // What the next process is told.
  std::uint64_t detected_ns = 0;
  std::string error;  // The newest exception that ended a process of this place,
  Version error_version = kNoVersion;
};

class Machine {
 public:
  explicit Machine(Options options);

  [[nodiscard]] Actions step(const Event& event);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] const std::vector<Place>& places() const { return places_; }
  [[nodiscard]] bool beats() const { return link_ == Link::kUp && is_far_; }

 private:
  enum class Link : std::uint8_t { kNever, kUp, kDown };
  struct Spare {
    Process process = 0;
    Incarnation incarnation = 0;
    std::string node_id;  // The only place that it may take; empty: any.
    bool is_ready = false;
  };
  struct Owed {  // A spare to start when the pause is over, or earlier:
    std::uint64_t pause = 0;
    Generation after = 0;  // when a step was made in a newer generation than this.
    std::string node_id;   // As in Spare.
  };

  void on(const Started&);
  void on(const Died& e);
  void on(const SpawnFailed& e);
  void on(const PauseOver& e);
  void on(const Looked& e);
  void on(const LinkUp& e);
  void on(const LinkDown&) { link_ = Link::kDown; }
  void on(const Received& e);
  void on(const Interrupted& e);
  void on(const GraceOver&);
  void on(const OutOfReach& e);
  void on(const SpareReady& e);

  void receive(const wire::JobProgress& m);
  void receive(const wire::JobEnded& m);
  void receive(const wire::Refused& m);
  void receive(const wire::Evict& m);
  void receive(const wire::Places& m);
  void receive(const wire::Addresses& m);
  void receive(const wire::Waiting& m);
  void wait_for_places(std::int32_t places);
  template <class Other>
  void receive(const Other&) {}

  std::int32_t drop_others(const std::set<std::string>& granted);
  bool take_lacking(std::set<std::string> granted);
  void hear_of_end(const Died& e, const std::string& node_id);
  void place_died(Place& place, const Died& e);
  void spare_died(const Died& e);
  void give(Place& place);
  void start(Place& place);
  std::deque<Spare>::iterator spare_for(const Place& place);
  void add_spare(const std::string& node_id);
  void end_spares();
  void maybe_rehearse();
  void end_rehearsal();
  void call_off_rehearsals();
  void rehearsal_died(const Died& e);
  void rehearsal_not_started(const SpawnFailed& e);
  void rehearsal_takes_too_long();
  void conclude_rehearsal(wire::RehearsalState verdict);
  [[nodiscard]] bool is_at_a_place(Process process) const;
  [[nodiscard]] std::vector<std::string> rehearsed_places() const;
  [[nodiscard]] Rehearsals::Pause pauses() {
    return [this](Duration how_long) { return pause(how_long); };
  }
  [[nodiscard]] bool is_needed(const std::string& spare_of) const;
  void start_owed(const std::function<bool(const Owed&)>& due);
  std::uint64_t pause(Duration how_long);
  std::uint64_t pause(std::int32_t times);
  void tell_state();
  void send(wire::Message message);
  void say_end(const Place& place, const Died& e);
  bool repeats_its_error(Place& place, const Died& e);
  [[nodiscard]] static Exit failed(const Died& e, const std::string& node_id);
  [[nodiscard]] Exit too_often(const Place& place) const;
  [[nodiscard]] Exit for_its_error(const Place& place, const Died& e) const;
  void fail(Exit result);
  void end_all(bool gently);
  void say_interrupted();
  void maybe_exit();
  void stay();
  void enter(State next);
  [[nodiscard]] bool is_ending() const { return state_ >= State::kEnding; }
  [[nodiscard]] std::int64_t worker_places() const {
    return std::count_if(places_.begin(), places_.end(),
                         [](const Place& p) { return p.role == Role::kWorker; });
  }
  // Whether all ranks run here, and did so from the start. An agent that has lost places may be cut
  // off, so its word is not enough.
  [[nodiscard]] bool is_local() const {
    return worker_places() == options_.world_size &&
           std::ssize(options_.workers) == worker_places();
  }
  // Whether it is a spare host without places, so far or again.
  [[nodiscard]] bool waits_for_places() const {
    return options_.spare_host && !options_.drained && worker_places() == 0;
  }
  [[nodiscard]] bool is_awaited_elsewhere() const;
  [[nodiscard]] bool owes_last_word() const;
  [[nodiscard]] bool workers_done() const;
  [[nodiscard]] bool is_scheduler(Process process) const;
  [[nodiscard]] bool scheduler_runs() const;

  Options options_;
  Prng prng_;
  std::vector<Place> places_;       // If a scheduler runs here, its place is the first.
  std::deque<Spare> spares_;        // Oldest first.
  std::set<Process> running_;       // Spawned, and not known to have exited.
  std::map<Process, int> stopped_;  // In how many looks in a row each was stopped.
  std::map<Process, wire::Ending::Kind> ended_;  // Processes that this agent has killed, and why.
  std::vector<Owed> owed_;                       // Spares to start later.
  Rehearsals rehearsals_;
  std::uint64_t next_pause_ = 1;
  Process next_process_ = 1;
  std::int32_t spare_failures_ = 0;
  Version version_ = 0;
  Generation generation_ = 0;  // The generation in which version_ was made.
  AddressBook book_;           // Where the ranks are, as the scheduler has said last.
  Link link_ = Link::kNever;   // The link to the scheduler.
  bool is_far_ = false;
  bool told_ = false;        // The scheduler was sent the newest places,
  bool spares_told_ = true;  // and the newest spares and verdicts.
  bool heard_end_ = false;  // It knows of the job's end, from the scheduler or from an own process.
  bool stays_ = false;      // It stays only for what other hosts have to hear, or may need.
  bool gave_up_ = false;    // From now on, it does not stay for other hosts.
  std::uint64_t last_word_ = 0;  // The pause after which it stops staying; 0: none.
  bool grace_over_ = false;      // A grace period has ended.
  bool workers_leave_ = false;   // The workers were interrupted, and nobody has been told yet.
  State state_ = State::kRunning;
  std::size_t event_ = 0;  // Index of the event that is being handled.
  Exit result_;
  Process blamed_ = 0;  // The process whose death result_ tells of.
  Actions actions_;
};

}  // namespace holdfast::agent
