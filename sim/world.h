// World: the simulated job: one scheduler with its journal, workers with arenas and collectives,
// agents or a person who starts them, connections, time, and faults. It drives the machines of
// core/ as the shells do, and decides nothing itself: all that may go one way or another is a
// choice.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "core/agent/machine.h"
#include "core/controller/machine.h"
#include "core/member/machine.h"
#include "core/trainer/machine.h"
#include "sim/checkers.h"
#include "sim/choices.h"
#include "sim/outcome.h"
#include "sim/setup.h"

namespace holdfast::sim {

// The lease is short compared with the checkers' bounds. The timeouts are longer than all faults of
// a run together.
inline constexpr Duration kLease = std::chrono::seconds(3);
inline constexpr Duration kTopologyTimeout = std::chrono::seconds(60);
// How long a process tries to reach a scheduler before it gives up.
inline constexpr Duration kAlonePatience = std::chrono::seconds(60);
inline constexpr Duration kReplacementTimeout = std::chrono::seconds(60);

// Removes an element, and returns it.
template <class T>
T take(std::vector<T>& from, std::size_t which) {
  T taken = std::move(from[which]);
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(which));
  return taken;
}

class World {
 public:
  // `log`: gets each transition in words; may be null.
  World(const Setup& setup, Choices& choices, std::vector<std::string>* log);
  Outcome run();

 private:
  using Index = std::size_t;
  static constexpr Index kNone = ~Index{0};

  // The state of a worker's program.
  enum class Program : std::uint8_t {
    kSpare,
    kUnplaced,
    kExchanging,
    kOpening,
    kTraining,
    kEnded,
    kFailed
  };
  struct Exchange {
    Index link = kNone;  // The connection for key-values.
    Instant since{};     // Since when it waits for the values of the other ranks.
    bool kept = false;   // A value is stored under its key: its own, or a predecessor's.
    bool over = false;   // It was told that the job is over.
    std::set<Rank> got;
    wire::KeyValue list{.key = {}, .value = {}, .version = 0};  // The list as it was last read.
    wire::Put enlisting;    // The last Put of the list; id 0: none yet.
    bool answered = true;   // `enlisting` was answered.
    bool enlisted = false;  // It has appended itself to the list.
  };
  struct Worker {
    agent::Process process = 0;
    Index agent = kNone;  // The agent that has started it; kNone: a person, or it is `foreign`.
    std::string node_id;
    Incarnation incarnation = 0;
    std::uint64_t attempt = 0;
    std::optional<member::Machine> machine;
    std::optional<trainer::Machine> trainer;
    Program program = Program::kUnplaced;
    std::deque<trainer::Work> work;  // The work of the training thread, oldest first.
    bool half = false;               // The first half of the oldest work is done.
    Generation stopped_up_to = 0;    // It joins no group of a generation up to this one any more.
    bool sums_busy = false;          // It was stopped in the middle of a sum.
    bool repair_stopped = false;     // A newer generation has stopped its repair.
    bool said_parked = false;        // It has reported, and has no order to carry out yet.
    Version began_at = 0;            // The version at which its program began the step under way.
    bool alive = true;
    bool foreign = false;           // A process of another host that asks for a place (P31).
    bool over = false;              // It was told that the job is over, or that it has no place.
    std::optional<bool> job_ended;  // It was told that the job has ended: well, or not.
    std::optional<std::int32_t> leaving;  // It will exit with this code.
    std::int32_t signal = 0;              // A signal that was sent and is not delivered yet.
    Index link = kNone;
    Exchange exchange;
    Rank rank = kNoRank;
    std::vector<Index> host_of;   // By rank, in the generation that it was told to go to.
    std::vector<Rank> holder_of;  // By rank; only with several hosts.
    Generation joined = 0;        // The generation of the group that it is in; 0: in none.
    std::uint64_t operation = 0;  // How many of the group's operations have ended for it.
    Instant paused_until{};
    std::optional<Instant> stopped;  // Since when it is stopped, if its agent can see that.
    Instant died_at{};
    std::uint64_t addresses_seen = 0;      // The name of the address book that it last looked at.
    std::optional<Instant> addresses_due;  // Then it asks the scheduler for the address book.
    Instant gives_up_at{};  // Without a connection until then, the scheduler is out of reach.
    bool cut_off = false;   // It has given up on the scheduler.
    Instant disturbed{};    // Until when, at the last time, the scheduler could not hear it.
  };
  struct Letter {  // A message as it is on its way.
    std::uint8_t kind = 0;
    std::string body;
  };
  struct Connection {
    Index worker = kNone;  // kNone: an agent's.
    Index agent = kNone;
    std::deque<Letter> up, down;
    bool scheduler_open = true;   // The scheduler's shell has not been told of the end.
    bool client_open = true;      // The client has not been told of the end.
    bool scheduler_gone = false;  // The scheduler's side has ended; the client will be told.
    bool client_gone = false;     // The client's side has ended; the scheduler will be told.
    bool accepted = false;        // The controller has been told of the connection.
    bool exchanges = false;       // It is for key-values only.
    bool closed_by_scheduler = false;
    Instant stalled_until{};
  };
  struct Group {
    std::bitset<kMostRanks> joined;
    bool aborted = false;
    bool linked = false;  // Its ranks lie on several hosts.
    struct Operation {
      std::int32_t arrivals = 0;
      std::uint64_t sum = 0;
      Version step = 0;
    };
    std::vector<Operation> operations;
    std::map<Rank, Version> given;  // By rank: the version that it last gave to its holder.
  };
  struct PrivatePart {  // The private part of one rank, as its holder has it.
    Version version = kNoVersion;
    Version staged = kNoVersion;
    [[nodiscard]] bool has(Version v) const {
      return version != kNoVersion && (v == version || v == staged);
    }
  };
  struct Scheduler {
    agent::Process process = 0;
    bool starting = false;
    bool lost = false;  // Nobody will start it again.
    std::optional<controller::Machine> machine;
    std::deque<controller::Store> stores;  // Stores under way, oldest first.
    std::optional<Instant> deadline;
    std::optional<Instant> exits_at;  // Set after the machine's End.
    std::int32_t signal = 0;
    bool success = false;
    Instant ended_at{};
    Instant since{};
    Instant paused_until{};
    std::optional<Instant> stopped;  // Since when it is stopped, if its agent can see that.
  };
  struct Pause {
    Instant until{};
    std::uint64_t pause = 0;
  };
  struct AgentProcess {
    agent::Machine machine;
    bool alive = true;
    Index link = kNone;
    Instant connects_at{};    // The earliest time of the next connection.
    Instant gives_up_at{};    // Without a connection until then, it gives up.
    Instant disturbed{};      // Until when, at the last time, the scheduler could not hear it.
    bool is_hurried = false;  // Interrupted while it only waited for others: it may exit at once.
    std::vector<agent::Died> deaths;         // Deaths of which it was not told yet.
    std::deque<agent::Process> not_spawned;  // Failed starts of which it was not told yet.
    std::vector<agent::Promote> promotions;  // On their way to the spare.
    std::vector<agent::Process> rehearsals;  // Processes that rehearse now.
    std::vector<Instant> graces;
    std::vector<Pause> pauses;
    std::optional<Instant> next_look;  // Only while a process is stopped.
    Instant last_look{};
    Instant stood_still{};  // Until when it stood still, at the last time.
    std::optional<agent::Exit> exited;
    std::optional<wire::Addresses> addresses;  // Those that it wrote for the workers of its host.
    bool knows_end = false;                    // One of its processes had heard of the job's end.
    Instant cut_until{};                       // With hosts: its host is cut off until then,
    Instant away_until{};                      // or can make no connections until then.
    bool is_down = false;       // Its host was lost silently: no kernel of it answers.
    bool is_host_lost = false;  // Its host is lost, or may be taken for lost.
    [[nodiscard]] bool runs() const { return alive && !exited; }
  };
  struct Person {  // A person who starts dead processes again by hand.
    struct Errand {
      std::string node_id;
      Instant at{};
    };
    std::vector<Errand> workers;
    bool scheduler = false;
    std::uint32_t left = 30;
  };

  enum class Kind : std::uint8_t {
    kUp,
    kDown,
    kSchedulerHears,
    kClientHears,
    kStoreDone,
    kControllerTimer,
    kSchedulerStart,
    kSchedulerExit,
    kSchedulerSignal,
    kConnect,
    kAgentConnect,
    kTrain,
    kSumsIdle,
    kExit,
    kSignal,
    kUnreachable,
    kPromote,
    kDied,
    kSpawnFailed,
    kLook,
    kPauseOver,
    kGrace,
    kAgentAlone,
    kRehearsalEnds,
    kPersonWorker,
    kPersonScheduler,
    kProof,
    kNotThere,
    kAskConnect,
    kAddressesFound,
    kAddressesOverdue
  };
  struct Transition {
    Kind kind;
    Index index;
    Index agent = 0;  // The agent, if the transition is one of an agent.
  };
  struct Mishap {
    Fault fault;
    Index index;
  };

  // world.cc
  void start();
  void list_transitions();
  void list_network();
  void list_processes();
  void put_in_order();
  void perform(const Transition& transition);
  [[nodiscard]] std::string describe(const Transition& transition) const;
  [[nodiscard]] std::string describe_for_agent(const Transition& transition) const;
  [[nodiscard]] std::string describe(const Mishap& mishap) const;
  [[nodiscard]] static std::string in_words(const Letter& letter);
  [[nodiscard]] static std::string what_is_next(const Worker& worker);
  bool advance();
  void beat();
  [[nodiscard]] Duration beat_every() const;
  [[nodiscard]] std::optional<Instant> next_time() const;
  [[nodiscard]] bool over() const;
  void check_end();
  [[nodiscard]] wire::Reason why_ended() const;
  [[nodiscard]] const wire::Reason* why_ended_by_agents() const;
  void check_deaths_are_known();

  // faults.cc
  [[nodiscard]] bool maybe_fault();              // Returns whether a fault struck.
  [[nodiscard]] bool finished(Rank rank) const;  // As the durable record says.
  void list_faults();
  void strike(const Mishap& mishap);
  void kill_workers(bool wipe, Index only);
  [[nodiscard]] bool is_of_host(const Connection& link, Index agent) const;
  void lose_host(Index agent);
  void cut_host(Index agent);
  void reset_host(Index agent);
  void ask_to_move(Index from);
  void lose_sight_of(Index agent);
  void interrupt(Index index);
  void fail_spawns();
  void stand_still();
  void excuse_last_calls(Instant until);
  [[nodiscard]] bool any_finished() const;
  [[nodiscard]] bool has_durable_roster() const;
  [[nodiscard]] bool is_on_last_call(const Worker& worker) const;
  void disturb(Worker& worker, Instant until);
  void disturb(const Connection& link, Instant until);
  [[nodiscard]] bool is_legitimate(const wire::Reason& reason) const;
  [[nodiscard]] bool is_all_lost() const;

  // network.cc
  Index connect(Index worker, Index agent);
  void accept(Index link);
  void deliver_up(Index link);
  void deliver_down(Index link);
  void scheduler_hears(Index link);
  void client_hears(Index link);
  void client_is_gone(Index link, bool loses);
  void break_link(Index link, std::uint32_t what_is_lost);
  [[nodiscard]] static Letter written(const wire::Message& message);
  [[nodiscard]] std::optional<wire::Message> read(const Letter& letter);
  [[nodiscard]] bool flows(const Connection& link) const { return link.stalled_until <= now_; }

  // scheduler.cc
  void start_scheduler();
  void kill_scheduler(std::int32_t code, bool store_survives);
  void tell_controller(const controller::Event& event);
  void check_agent_hears_first();
  void store_done();
  void hear(Index link, wire::Message message);
  void hear_of_step(const wire::Message& message);
  void carry_out(const controller::Action& action);
  void send_down(Index link, const wire::Message& message);
  void controller_timer();
  void tell_and_check_evictions(const controller::Event& event);
  void probe(const controller::Probe& probe);
  [[nodiscard]] Rank rank_in_roster(const std::string& node_id) const;
  void check_evictions(const std::set<std::string>& lost_before);
  [[nodiscard]] std::uint64_t record_print() const;

  // worker.cc
  Index add_worker(agent::Process process, std::string node_id, Incarnation incarnation,
                   std::uint64_t attempt, bool spare, Index agent = kNone);
  void add_foreign(Index worker);
  void place(Worker& worker);
  [[nodiscard]] std::string endpoint_of(const Worker& worker) const;
  void tell_member(Index worker, const member::Event& event);
  void tell_trainer(Index worker, const trainer::Event& event);
  void miss_scheduler(Index worker);
  void bring_events();
  void carry_out(Index worker, const member::Action& action);
  void list_addresses(Index worker);
  void find_addresses(Index worker);
  void send_up(Index link, const wire::Message& message);
  void die(Index worker, std::int32_t code, bool lifeline, bool loses);

  // exchange.cc
  [[nodiscard]] static std::uint64_t own_value(const Worker& worker);
  [[nodiscard]] static std::optional<Instant> exchange_ends(const Worker& worker);
  [[nodiscard]] bool wants_to_exchange(const Worker& worker) const;
  [[nodiscard]] bool has_all(const Worker& worker) const;
  void list_exchange(Index worker);
  void ask(Index worker);
  void put_own(Worker& worker);
  void enlist(Worker& worker);
  void hear_of_list(Worker& worker, const wire::Got& got);
  void begin_exchange(Index worker);
  void end_exchange(Index worker);
  void hear_of_exchange(Index worker, const wire::Message& message);
  void check_told(Index link, const wire::Message& message);
  void make_durable(controller::Store& store);
  template <class T>
  void write_down(T& value, Result<T> (*decode)(std::string_view));

  // trainer.cc
  [[nodiscard]] trainer::Options trainer_options() const;
  [[nodiscard]] bool can_train(const Worker& worker) const;
  void train(Index worker);
  void open(Index worker);
  void carry_out(Index worker, const trainer::Action& action);
  void resume(Index worker, const trainer::Resume& action);
  void stop_group(Index worker);
  void sums_end(Index worker);
  // Does the first half of a work. False: it has no first half, or that can not be done.
  bool begin(Index worker, const trainer::Repair& work);
  bool begin(Index worker, const trainer::JoinGroup& work);
  bool begin(Index worker, const trainer::ExchangeCopies& work);
  bool begin(Index worker, const trainer::Arrive&);
  bool begin(Index worker, const trainer::Update&);
  template <class Other>
  bool begin(Index, const Other&) {
    return false;
  }
  void end(Index worker, const trainer::Repair& work);
  void end(Index worker, const trainer::Unstage&);
  void end(Index worker, const trainer::JoinGroup& work);
  void end(Index worker, const trainer::LeaveGroup&);
  void end(Index worker, const trainer::AwaitSums&);
  void end(Index worker, const trainer::Stage& work);
  void end(Index worker, const trainer::ExchangeCopies& work);
  void end(Index worker, const trainer::Arrive&);
  void end(Index worker, const trainer::Update&);
  void end(Index worker, const trainer::Return& result);
  bool arrive(Worker& worker);
  [[nodiscard]] bool fetches(const Worker& worker, const trainer::Repair& work) const;
  [[nodiscard]] const PrivatePart* private_source(const Worker& worker,
                                                  const trainer::Repair& work);
  void check_copies(const Worker& worker);
  void wrote(const Worker& worker);
  void check_told(const Worker& worker, trainer::Return::What what);
  void fail_training(Index worker, const wire::Reason& reason);
  void finish_update(Arena& arena);
  [[nodiscard]] bool owner_lives(const Arena& arena, const Worker& opener) const;
  [[nodiscard]] bool complete(const Worker& worker) const;
  [[nodiscard]] bool has_come(const Worker& worker) const;
  [[nodiscard]] bool has_formed(const Worker& worker) const;
  [[nodiscard]] Holding holding(const Worker& worker) const;
  // The host of a worker's memory; 0 if all ranks share one host.
  [[nodiscard]] Index host_of(const Worker& worker) const {
    return setup_.hosts ? worker.agent : 0;
  }
  [[nodiscard]] Index host_named(const std::string& name) const;
  [[nodiscard]] bool is_linked(const Worker& worker) const;
  [[nodiscard]] bool has_ended(const Worker& worker) const;
  [[nodiscard]] bool is_out_of_sight(const Worker& worker) const {
    return setup_.hosts && agents_[worker.agent].is_host_lost;
  }
  [[nodiscard]] bool is_cut_off(const Worker& worker) const;
  // wards(): the ranks whose private parts this worker holds. holder_of(): who holds that of
  // `rank`.
  [[nodiscard]] std::vector<Rank> wards(const Worker& worker) const;
  [[nodiscard]] Rank holder_of(const Worker& worker, Rank rank) const;
  [[nodiscard]] PrivatePart& held(Index host, Rank holder, Rank ward) {
    return private_parts_[{host, holder, ward}];
  }
  [[nodiscard]] bool is_held_by(const Worker& worker,
                                const std::tuple<Index, Rank, Rank>& key) const {
    return std::get<0>(key) == host_of(worker) && std::get<1>(key) == worker.rank;
  }
  void settle(const Worker& worker);
  void forget_held(const Worker& worker);
  void drop_the_rest(const Worker& worker);
  bool seed(const Worker& worker);
  [[nodiscard]] Arena& arena(Index host, Rank rank) {
    return arenas_[host * static_cast<Index>(setup_.ranks) + static_cast<Index>(rank)];
  }
  [[nodiscard]] Arena& arena(const Worker& worker) { return arena(host_of(worker), worker.rank); }
  [[nodiscard]] const Arena& arena(const Worker& worker) const {
    return const_cast<World*>(this)->arena(worker);
  }
  [[nodiscard]] std::vector<Arena> arenas_in_use();

  // agent.cc
  void start_agents();
  [[nodiscard]] agent::Options options_of(Index i, Index of) const;
  void start_again(Index lost);
  void list_agents();
  void perform_for_agent(const Transition& transition);
  void tell_agent(Index agent, const agent::Event& event);
  void tell_of_spares(Index agent);
  void carry_out(Index agent, const agent::Action& action);
  void check_exit(Index index);
  void kill_child(Index agent, const agent::Kill& kill);
  void kill_agent(Index agent);
  void agent_hears_of_death(Index agent, agent::Process process, std::int32_t code, bool lifeline,
                            std::optional<bool> job_ended = {});
  void spawn(Index agent, const agent::Spawn& what);
  void look(Index agent);
  void stop(Worker& worker);
  void stop_scheduler();
  void begin_looking(Index agent);
  void check_stopped_are_ended();
  void promote(Index agent, Index which);
  [[nodiscard]] Index worker_of(agent::Process process) const;
  [[nodiscard]] bool agents_have_exited() const;
  [[nodiscard]] Index agent_of(agent::Process process) const;

  [[nodiscard]] bool scheduler_runs() const {
    return scheduler_.machine && scheduler_.paused_until <= now_;
  }
  [[nodiscard]] bool awake(const Worker& worker) const {
    return worker.alive && worker.paused_until <= now_;
  }
  void fold(std::uint64_t number) { hash_ = mix(hash_ ^ number) + 0x9e3779b97f4a7c15U; }
  void tell(const std::string& text);
  void tell(const Transition& transition);

  Setup setup_;
  Choices& choices_;
  std::vector<std::string>* log_;
  Checkers checkers_;
  Prng prng_{1};
  Instant now_{};
  std::uint64_t hash_ = 0;
  std::uint32_t transitions_ = 0;
  std::uint32_t faults_left_ = 0;
  std::uint32_t burst_until_ = 0;  // A count of transitions.
  std::uint32_t struck_ = 0;       // The faults that have happened: a mask of bit(Fault).
  Instant last_fault_{};
  Instant next_beat_{};
  bool asked_in_vain_ = false;  // The exchange failed: a process had ended early without it.
  bool source_lost_ = false;    // A copy failed because its source's arena was lost.

  std::vector<Arena> arenas_;                                           // By host, then rank.
  std::map<std::tuple<Index, Rank, Rank>, PrivatePart> private_parts_;  // By host, holder, ward.
  std::uint32_t wipes_ = 0;  // How many arenas were lost, or may be taken for lost.
  std::map<Generation, Group> groups_;
  std::deque<Worker> workers_;    // Dead ones, too.
  std::deque<Connection> links_;  // The Link of a Connection is its index + 1.
  Index first_link_ = 0;          // All connections before it are closed on both sides.
  Scheduler scheduler_;
  std::optional<wire::Formation> durable_;
  std::map<std::string, wire::KeyValue> durable_values_;
  std::map<std::uint64_t, wire::Writer> durable_writers_;
  bool agent_told_end_ = false;   // An agent was told of the job's end at some time.
  bool worker_told_end_ = false;  // A worker was, by the actions that were just carried out.
  Person person_;
  std::vector<controller::ProvenDead> proofs_;
  std::vector<controller::NotThere> not_there_;  // Answers to probes, on their way.

  std::vector<AgentProcess> agents_;         // The first one runs the scheduler. Empty: by hand.
  std::uint32_t spawns_fail_ = 0;            // How many of the next starts of processes fail.
  std::int32_t spawns_failed_ = 0;           // How many have failed; fewer than an agent tries.
  agent::Process next_process_ = 1'000'000;  // The number of the next process started by hand.

  // An event for a machine of a worker. They are delivered one after another, as by its threads.
  struct Told {
    Index worker;
    std::variant<member::Event, trainer::Event> event;
  };
  std::deque<Told> told_;
  bool bringing_ = false;

  std::vector<Transition> possible_;
  std::vector<Transition> other_;
  std::vector<Mishap> mishaps_;
};

// Draws the setup of `world` and runs it. Requires: draw_setup() knows the name.
[[nodiscard]] Outcome simulate(const std::string& world, Choices& choices,
                               std::vector<std::string>* log = nullptr);

}  // namespace holdfast::sim
