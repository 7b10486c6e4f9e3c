// What an agent does with the processes of its host: starts, replaces, promotes, gives up.
//
// Pure: no clock, no I/O, no processes. A place of the job is given to one process at a
// time; every process that gets it has a higher attempt number. Why it is right:
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
  std::uint64_t seed = 0;            // Incarnations are drawn from it: random for every agent.
  // Of several hosts with etcd, each does: one scheduler serves, the others stand by.
  bool runs_scheduler = false;
  bool stands_by = false;  // With etcd: `runs_scheduler`, but another host has the first one.
  bool continues = false;  // Its scheduler goes on from the journal of a dead agent's.
  std::int32_t spares = 0;
  // It has no places until the scheduler gives it those of a lost host; `spares` wait for them.
  bool spare_host = false;
  std::int32_t takes = 0;         // So many places of lost hosts it would take.
  bool drained = false;           // It takes none any more, and ends once it has none.
  bool bound_spares = false;      // One for each of `workers`, in place of `spares` for any.
  std::int32_t max_restarts = 3;  // Of one place, or of the spares, without a step made between.
  std::string max_restarts_option = "--max_restarts";  // As its user writes it.
  RehearsalOptions rehearsals = {};
};

inline constexpr const char* kSchedulerNode = "scheduler";

// How often the shell looks for stopped processes (SIGSTOP), and in how many looks on end one must
// be found so: a tool that stops a process for a moment does not cost it its place.
inline constexpr Duration kLookEvery = std::chrono::milliseconds(150);
inline constexpr int kStoppedLooks = 4;

// A process that can not be started for want of memory or of process numbers may be, a moment
// later.
inline constexpr std::int32_t kSpawnTries = 5;

// Whoever takes the place of a promoted spare is started when the job has made a step since, or
// after so long: until then the recovery has a better use for the processors.
inline constexpr Duration kSparePatience = std::chrono::seconds(1);

// How long an agent whose processes have all ended waits for a scheduler. That is long, because the
// hosts of a job may be started one after another.
inline constexpr Duration kLastWord = std::chrono::seconds(30);
// And for the answer to a failure, of a scheduler that it had reached before.
inline constexpr Duration kAnswer = std::chrono::seconds(5);

// What may happen.
struct Started {};
struct Died {  // Seen first by its lifeline (no exit code yet) or by its end itself.
  Process process = 0;
  wire::Ending ending;  // kUnknown: it is dying; a second Died tells how.
  std::uint64_t detected_ns = 0;
  std::string error = {};        // The exception that ended it, in its own words; empty: none did.
  Version version = kNoVersion;  // The last step that it has made; kNoVersion: none is known of.
  std::optional<bool> job_ended = {};  // It has heard that the job has ended: well, or not.
  bool is_final = false;  // `error` says what the program has to change, so it would come again.
  std::optional<std::string> verdict = {};  // What a rehearsal has left: any bytes.
};
struct SpawnFailed {
  Process process = 0;
  std::string why;
};
struct PauseOver {
  std::uint64_t pause = 0;
};
struct Looked {               // Every kLookEvery.
  std::set<Process> stopped;  // Of the running: whom a signal has stopped. A debugger is none.
  bool on_time = true;        // No look was missed: we ourselves were not stopped meanwhile.
};
struct SpareReady {  // It waits, and would go on with a place at once.
  Process process = 0;
};
struct LinkUp {         // Connected to the scheduler.
  bool is_far = false;  // Agents of other hosts may be, too: each shows by beats that it lives.
};
struct LinkDown {};
struct Received {
  wire::Message message;
};
struct Interrupted {  // The user, or what started us, wants the job to end.
  std::int32_t signal = 0;
};
struct GraceOver {};  // Who was asked to end had its time.
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
struct Predecessor {  // How the last process of a place ended. kUnknown: there was none, or so.
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
  bool takes_over = false;  // A place that another host has had.
  bool prepares = false;    // A spare: whatever place it gets, its state is not on this host yet.
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
  bool gently = false;  // SIGTERM; the machine asks again without it after GraceOver.
};
struct WantGrace {};  // Deliver GraceOver once, after the shell's grace period.
struct WantPause {    // Deliver PauseOver once, so much later.
  std::uint64_t pause = 0;
  Duration how_long{};
};
struct LeaveAddresses {  // For the workers of this host, in place of those before.
  wire::Addresses addresses;
};
struct Say {
  wire::Reason reason;
};
struct Log {  // Only in the log that the reason names.
  wire::Reason reason;
};
struct Stay {  // Nothing of ours runs, but other hosts are to hear of it: at most so long.
  std::int32_t code = 0;  // As of Exit.
  wire::Reason reason;
  Duration at_most{};
};
struct Exit {  // The agent leaves, once what it has sent is under way. Nothing of ours runs.
  std::int32_t code = 0;
  wire::Reason reason;      // Of a failure: the first that was not recovered from.
  std::string failed_node;  // Whose log tells more; may be empty.
  bool drained = false;     // The job goes on, and needs this agent no more.
};
using Action = std::variant<Spawn, Promote, Send, Kill, WantGrace, WantPause, Say, Exit,
                            LeaveAddresses, Stay, Log>;
using Actions = std::vector<Action>;

// How far the agent is. Each leads only to those after it.
enum class State : std::uint8_t {
  kRunning,  // Whoever dies is replaced. Also while all have ended well and other hosts go on.
  kDone,     // The job has ended, in good order as far as it goes: who is gone is not missed.
  kEnding,   // Nothing is replaced any more, and all are ended. Then the scheduler has to hear it.
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
  Process process = 0;   // 0: none.
  Process previous = 0;  // The one that died last.
  Incarnation incarnation = 0;
  std::uint64_t attempt = 0;
  bool done = false;             // Its process ended with exit code 0.
  std::int32_t failures = 0;     // Since the last step was made.
  std::uint64_t pause = 0;       // Its next process waits for the end of this one; 0: for none.
  std::int32_t not_started = 0;  // How often on end its process could not be.
  wire::Ending ending;           // Of `previous`, as is the next.
  Predecessor predecessor;       // For its successor.
  std::uint64_t detected_ns = 0;
  std::string error;  // The newest exception that ended a process of it, and after which step.
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
  struct Owed {  // A spare that is started when a pause is over, or before that:
    std::uint64_t pause = 0;
    Generation after = 0;  // When a step was made in a newer generation than this.
    std::string node_id;   // As of the spare.
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
  // All ranks run here, and none ever ran elsewhere: an agent that has lost its own may be cut off.
  [[nodiscard]] bool is_local() const {
    return worker_places() == options_.world_size &&
           std::ssize(options_.workers) == worker_places();
  }
  // It is a spare host, and has no places so far, or no more.
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
  std::vector<Place> places_;                    // The scheduler's first, where it runs here.
  std::deque<Spare> spares_;                     // Oldest first.
  std::set<Process> running_;                    // Spawned and not known to have ended altogether.
  std::map<Process, int> stopped_;               // In how many looks on end.
  std::map<Process, wire::Ending::Kind> ended_;  // By us, and why: no fault of their own.
  std::vector<Owed> owed_;                       // Spares.
  Rehearsals rehearsals_;
  std::uint64_t next_pause_ = 1;
  Process next_process_ = 1;
  std::int32_t spare_failures_ = 0;
  Version version_ = 0;
  Generation generation_ = 0;  // In which version_ was made.
  AddressBook book_;           // Where the ranks are, as the scheduler has told it last.
  Link link_ = Link::kNever;   // To the scheduler.
  bool is_far_ = false;
  bool told_ = false;            // Its newest state was said to a scheduler,
  bool spares_told_ = true;      // and which spares and verdicts it has.
  bool heard_end_ = false;       // Of the job, from the scheduler or from a process of its own.
  bool stays_ = false;           // Only for what other hosts have to hear, or may need.
  bool gave_up_ = false;         // It stays for nobody, from now on.
  std::uint64_t last_word_ = 0;  // The pause after which it gives up; 0: there is none.
  bool grace_over_ = false;      // Some grace is over.
  bool workers_leave_ = false;   // They were interrupted, which nobody has been told yet.
  State state_ = State::kRunning;
  std::size_t event_ = 0;  // That is being handled.
  Exit result_;
  Process blamed_ = 0;  // Whose death, one too many, result_ tells of.
  Actions actions_;
};

}  // namespace holdfast::agent
