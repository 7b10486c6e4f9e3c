#include "runtime/worker/worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.h"
#include "core/member/machine.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/host.h"
#include "os/slice.h"
#include "runtime/jobs/agent_watch.h"
#include "runtime/jobs/given_paths.h"
#include "runtime/jobs/scheduler_link.h"
#include "runtime/jobs/solo_folder.h"
#include "runtime/jobs/tls_choice.h"
#include "runtime/worker/address_lookup.h"
#include "runtime/worker/lifeline_holder.h"
#include "runtime/worker/promotion.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kHeartbeat = AgentWatch::kEvery;
constexpr Duration kFailLimit = 5s;
constexpr Duration kFaultPatience =
    20s;                                // From a group that can not be formed to word of its cause.
constexpr Duration kLinkPatience = 1s;  // From the end of a group to the complaint about it.
constexpr Duration kProgressInterval = 250ms;
constexpr Duration kProgressOfEach =
    100us;  // So that the scheduler hears no more in a large world.

// The lifeline and the folder below are static, so exit() ends them in good order.
std::unique_ptr<LifelineHolder>& held_lifeline() {
  static std::unique_ptr<LifelineHolder> holder;
  return holder;
}

// The training thread lets go of it; the other one may note in it just then.
std::mutex& lifeline_mutex() {
  static std::mutex mutex;
  return mutex;
}

void tell_lifeline(Version version) {
  const std::lock_guard lock(lifeline_mutex());
  if (held_lifeline()) held_lifeline()->note(version);
}

void tell_lifeline_of_end(bool well) {
  const std::lock_guard lock(lifeline_mutex());
  if (held_lifeline()) held_lifeline()->note_end(well);
}

// From here on, nobody has to hear of this process's end at once.
void let_go_of_lifeline() {
  const std::lock_guard lock(lifeline_mutex());
  held_lifeline().reset();
}

SoloFolder& solo_folder() {
  static SoloFolder folder;
  return folder;
}

// Whether there is a Worker. It owns all that is static here.
std::atomic<bool> taken = false;

trainer::Options trainer_options(const config::Settings& settings) {
  return {.solo = settings.role == config::Role::kNone,
          .protect = settings.protect,
          .replacement_timeout = settings.replacement_timeout,
          .link_patience = kLinkPatience,
          .forming_patience = kFaultPatience,
          .scheduler_timeout = settings.scheduler_timeout,
          .progress_interval =
              std::max<Duration>(kProgressInterval, kProgressOfEach * settings.worker_num)};
}

}  // namespace

struct Worker::Control {
  explicit Control(const config::Settings& s) : settings(s), trainer(trainer_options(s)) {}
  ~Control();

  const pid_t owner = ::getpid();

  void begin();
  Result<Identity> place_in_world();

  // In the loop's thread.
  void greet_scheduler();
  void lose_scheduler(const Error& why);
  void beat();
  void step(const member::Event& event);
  void do_it(member::Send& a) { link.send(a.message); }
  void do_it(member::RankGiven& a);
  void do_it(Assigned& a);
  void do_it(member::AwaitAddresses&) { lookup.begin(); }
  void do_it(member::Released&) { tell(trainer::Released{}); }
  void do_it(member::Say& a) {
    std::fprintf(stderr, "holdfast: %s\n", wording::in_words(a.reason).c_str());
  }
  void do_it(member::GiveUp& a);

  // In any thread.
  void post(member::Event event);
  void tell(const trainer::Event& event);
  void carry_out(trainer::Do& a);
  void carry_out(trainer::Say& a) { post(member::Told{std::move(a.message)}); }
  void carry_out(trainer::StopGroup& a);
  void carry_out(trainer::StopRepair&) { neighbours.stop_repair(); }
  void carry_out(trainer::Resume& a);
  // Outside of the lock: nobody waits for the file.
  void trace_event(const trainer::NoteStopped& a);
  void trace_event(const trainer::NoteParked& a);
  void trace_event(const trainer::Resume& a);
  template <class Other>
  void carry_out(const Other&) {}
  template <class Other>
  void trace_event(const Other&) {}

  // The training thread waits until `ready`. False: `limit` has passed. Errors: why there is
  // nothing more to wait for.
  template <class Ready>
  Result<bool> wait(std::unique_lock<std::mutex>& lock, Duration limit, Ready ready);

  config::Settings settings;
  AgentWatch agent{settings};
  io::Trace trace;

  const Rank bound_rank = rank_of_bound_spare(settings);

  // The training thread only.
  bool promoted = false;
  std::optional<Identity> known;  // Once identity() has given it.

  // The loop's thread only.
  io::Loop loop;
  std::optional<member::Machine> machine;
  SchedulerLink link{
      loop,
      settings,
      wire::PeerKind::kWorker,
      {.on_up = [this] { greet_scheduler(); },
       .on_message = [this](wire::Message m) { step(member::Received{std::move(m)}); },
       .on_down = [this] { step(member::Disconnected{}); },
       .on_out_of_reach = [this](const Error& why) { lose_scheduler(why); }}};
  AddressLookup lookup{loop,
                       os::runtime_path(settings.job),
                       {.is_awaited = [this] { return machine->awaits_addresses(); },
                        .on_found =
                            [this](std::shared_ptr<const AddressBook> book) {
                              step(member::AddressesFound{std::move(book)});
                            },
                        .on_overdue = [this] { step(member::AddressesOverdue{}); }}};
  // A promoted spare: its agent has given all its threads a short slice, and those that they have
  // made since have it from them. `lifeline_holder` keeps it.
  bool hurried = false;
  pid_t lifeline_holder = 0;

  // Shared by both.
  std::mutex mutex;
  std::condition_variable changed;
  trainer::Machine trainer;
  std::deque<trainer::Event> events;  // Not empty: some thread brings them to the machine.
  std::deque<trainer::Work> work;
  std::optional<Identity> place;  // Without its directory.
  std::optional<Error> over;
  bool stood_by = false;              // As of member::GiveUp.
  std::optional<Error> out_of_reach;  // While the scheduler has been gone for too long.

  std::function<bool(Generation)> stop_groups;

  KeyValues key_values{settings};
  Neighbours neighbours{settings};

  std::atomic<pid_t> training_thread = 0;
  std::atomic<Rank> rank = kNoRank;  // Once it is known.

  std::thread thread;  // Last: it uses all above.
};

// ---- The control thread -------------------------------------------------------------------------

void Worker::Control::begin() {
  machine.emplace(wire::Register{.job = settings.job,
                                 .node_id = settings.node_id,
                                 .incarnation = settings.incarnation,
                                 .attempt = settings.attempt,
                                 .host = os::host_name(),
                                 .pid = ::getpid(),
                                 .memory = os::shared_memory_name(),
                                 .domain = settings.domain});
  loop.post([this] { link.open(); });
  loop.after(kHeartbeat, [this] { beat(); });
  thread = std::thread([this] {
    (void)os::take_short_slice();  // So that the training threads stop when they are to.
    loop.run();
  });
}

Worker::Control::~Control() {
  if (!thread.joinable()) return;
  loop.post([this] { link.close([this] { loop.stop(); }); });
  thread.join();
}

void Worker::Control::greet_scheduler() {
  {
    const std::lock_guard lock(mutex);
    out_of_reach.reset();
  }
  tell(trainer::InReach{});
  step(member::Connected{neighbours.listen(link.local_address())});
}

void Worker::Control::lose_scheduler(const Error& why) {
  {
    const std::lock_guard lock(mutex);
    out_of_reach = why;
    changed.notify_all();
  }
  tell(trainer::OutOfReach{{.kind = wire::Reason::Kind::kOutOfReach, .detail = why.what}});
}

void Worker::Control::beat() {
  if (agent.gone()) agent.follow();
  link.send(wire::Heartbeat{});
  loop.after(kHeartbeat, [this] { beat(); });
}

void Worker::Control::step(const member::Event& event) {
  for (auto& action : machine->step(event)) {
    std::visit([&](auto& a) { do_it(a); }, action);
  }
}

// How many lower ranks share this rank's host. Where all do, nobody is told of peers.
Rank local_rank_among(const std::vector<PeerPlace>& peers, Rank rank) {
  const auto me = static_cast<std::size_t>(rank);
  if (me >= peers.size()) return rank;
  const auto same = [&](const PeerPlace& peer) { return peer.host == peers[me].host; };
  return static_cast<Rank>(std::count_if(peers.begin(), peers.begin() + rank, same));
}

void Worker::Control::do_it(member::RankGiven& a) {
  neighbours.placed(a.run_id, a.rank);
  neighbours.meet(a.peers->places());
  const std::lock_guard lock(mutex);
  place = Identity{.rank = a.rank,
                   .local_rank = local_rank_among(a.peers->places(), a.rank),
                   .world_size = a.world_size,
                   .run_id = a.run_id};
  rank = a.rank;
  changed.notify_all();
}

void Worker::Control::do_it(Assigned& a) {
  const bool runs = a.part.stage == wire::Stage::kRunning;
  if (runs && std::exchange(hurried, false)) os::take_usual_slice_of_others(lifeline_holder);
  tell(a);
}

void Worker::Control::do_it(member::GiveUp& a) {
  link.retire();
  if (a.job_ended) tell_lifeline_of_end(a.success);
  {
    const std::lock_guard lock(mutex);
    over = Error{Blame::kWorld, wording::in_words(a.reason)};
    stood_by = a.stood_by;
    changed.notify_all();
  }
  tell(trainer::JobOver{a.success, a.reason});
}

// ---- Any thread ---------------------------------------------------------------------------------

void Worker::Control::post(member::Event event) {
  if (settings.role == config::Role::kNone) return;
  loop.post([this, event = std::move(event)] { step(event); });
}

void Worker::Control::tell(const trainer::Event& event) {
  trainer::Actions done;
  {
    const std::lock_guard lock(mutex);
    events.push_back(event);
    while (!events.empty()) {
      auto actions = trainer.step(io::Loop::now(), events.front());
      events.pop_front();
      for (auto& action : actions) {
        std::visit([&](auto& a) { carry_out(a); }, action);
        done.push_back(std::move(action));
      }
    }
    changed.notify_all();
  }
  for (const auto& action : done) std::visit([&](const auto& a) { trace_event(a); }, action);
}

void Worker::Control::carry_out(trainer::Do& a) {
  if (std::holds_alternative<trainer::Repair>(a.work)) neighbours.begin_repair();
  work.push_back(std::move(a.work));
}

// StopGroup is answered at once.
void Worker::Control::carry_out(trainer::StopGroup& a) {
  // All ranks wait for the last one to stop: it shall not have to wait for a processor as well,
  // which spares and new processes keep busy now.
  if (training_thread != 0) (void)os::take_short_slice(training_thread);
  events.push_back(trainer::GroupStopped{!stop_groups || stop_groups(a.generation)});
}

void Worker::Control::carry_out(trainer::Resume& a) {
  neighbours.meet(a.peers->places());
  // In the steps to come all training threads are equal again.
  if (training_thread != 0) os::take_usual_slice(training_thread);
  tell_lifeline(a.version);
}

void Worker::Control::trace_event(const trainer::NoteStopped& a) {
  trace.event("stop", {{"rank", rank.load()}, {"generation", a.generation}});
}

void Worker::Control::trace_event(const trainer::NoteParked& a) {
  trace.event("parked", {{"rank", rank.load()},
                         {"generation", a.generation},
                         {"version", a.holding.version},
                         {"waited_since_ns", a.called_at.count()}});
}

void Worker::Control::trace_event(const trainer::Resume& a) {
  trace.event("resume",
              {{"rank", rank.load()}, {"generation", a.generation}, {"version", a.version}});
}

// ---- The training thread ------------------------------------------------------------------------

template <class Ready>
Result<bool> Worker::Control::wait(std::unique_lock<std::mutex>& lock, Duration limit,
                                   Ready ready) {
  const auto until = std::chrono::steady_clock::now() + limit;
  changed.wait_until(lock, until, [&] { return ready() || over || out_of_reach; });
  if (ready()) return true;
  if (over) return *over;
  if (out_of_reach) return *out_of_reach;
  return false;
}

Result<Identity> Worker::Control::place_in_world() {
  Identity identity;
  if (settings.role == config::Role::kNone) {
    auto directory = solo_folder().make(cat("solo-", ::getpid(), "-", settings.incarnation));
    if (!directory) return directory.error();
    identity.run_id = settings.incarnation;
    rank = identity.rank;
    identity.directory = *std::move(directory);
    return identity;
  }
  {
    std::unique_lock lock(mutex);
    const auto placed = wait(lock, config::kNever, [&] { return place.has_value(); });
    if (!placed && stood_by) {  // As a spare that was not needed: who runs it takes 0 for an end.
      std::fprintf(stderr,
                   "holdfast: the job has ended well (%s), and this process, of node '%s', never "
                   "had a place in it: it ends with exit code 0\n",
                   over->what.c_str(), settings.node_id.c_str());
      lock.unlock();
      std::exit(0);
    }
    if (!placed) return placed.error();
    identity = *place;
  }
  auto directory = os::runtime_directory(settings.job);
  if (!directory) return directory.error();
  identity.directory = *std::move(directory);
  return identity;
}

Worker::Worker(std::unique_ptr<Control> control) : control_(std::move(control)) {}

Worker::~Worker() {
  // A forked child does not have the thread, and shares the loop's descriptors with its parent. So
  // it must not end the loop: the parent's loop would not wake up any more.
  if (control_->owner != ::getpid()) (void)control_.release();
  control_.reset();
  held_lifeline().reset();
  solo_folder().remove();
  taken = false;
}

Result<std::unique_ptr<Worker>> Worker::start(const config::Settings& settings) try {
  HF_ASSERT(settings.role != config::Role::kScheduler);
  if (taken) {
    return Error{Blame::kUser,
                 "this process takes part in a job already: initialise Holdfast once"};
  }
  if (settings.role == config::Role::kNone && settings.worker_num > 1) {
    return Error{Blame::kUser,
                 cat("MS_WORKER_NUM is ", settings.worker_num, ", but MS_ROLE is not set, so this ",
                     "process would train alone: start it with msrun, or set MS_ROLE to MS_WORKER "
                     "(one process more, to MS_SCHED), or unset MS_WORKER_NUM")};
  }
  if (settings.role == config::Role::kNone && settings.other_size > 1) {
    return Error{
        Blame::kUser,
        cat("mpirun has started this process as one of ", settings.other_size, " (",
            settings.other_launcher, "), each of which would train alone, as rank 0: start the ",
            "program with `msrun --worker_num=", settings.other_size, "` in place of mpirun (with ",
            "PyTorch: `holdfast run --nproc-per-node ", settings.other_size, "`)")};
  }
  if (settings.role == config::Role::kNone && settings.spare_fd >= 0) {
    return Error{Blame::kUser,
                 cat("HOLDFAST_SPARE_FD is ", settings.spare_fd, ", but MS_ROLE is ",
                     "not set: only an agent (msrun) sets both, for its spares; ", "unset it")};
  }
  if (settings.role != config::Role::kNone) {
    // The scheduler has heard of it where it failed (secure_channel.cc).
    if (const auto with = with_program_tls(settings); !with) return with.error();
  }
  auto control = std::make_unique<Control>(settings);
  auto lifeline = LifelineHolder::start(settings);
  if (!lifeline) return lifeline.error();
  held_lifeline() = *std::move(lifeline);
  auto trace = open_trace(settings, "worker");
  if (!trace) return trace.error();
  control->trace = *std::move(trace);
  control->trace.event("start", {{"role", settings.spare_fd >= 0 ? "spare" : "worker"},
                                 {"node", settings.spare_fd >= 0 ? "" : settings.node_id}});
  if (settings.role != config::Role::kNone && settings.spare_fd < 0) control->begin();
  taken = true;
  return std::unique_ptr<Worker>(new Worker(std::move(control)));
} catch (const std::system_error& error) {  // A thread or a descriptor that can not be had.
  return os::no_task("this process can not take part in a job", error.code().value());
}

Result<Identity> Worker::identity() try {
  Control& c = *control_;
  c.training_thread = ::gettid();
  if (waits_spare()) {
    c.trace.event("waiting");
    if (held_lifeline()) held_lifeline()->note_ready();
    auto promotion = wait_for_promotion(c.settings.spare_fd);
    if (!promotion) return promotion.error();
    if (!*promotion) std::exit(0);
    ::close(c.settings.spare_fd);
    c.settings.node_id = (*promotion)->node_id;
    c.settings.attempt = (*promotion)->attempt;
    c.promoted = true;
    c.trace.event("promoted", {{"node", c.settings.node_id}});
    if (held_lifeline()) {
      held_lifeline()->take_short_slice();
      c.lifeline_holder = held_lifeline()->thread_id();
    }
    c.hurried = true;
    c.begin();
  }
  if (c.known) return *c.known;
  auto identity = c.place_in_world();
  if (identity && !solo() && identity->world_size != settings().worker_num) {
    return fail(
        cat("MS_WORKER_NUM is ", settings().worker_num, " for node '", settings().node_id,
            "', but the job has ", identity->world_size,
            " workers by that of its scheduler: give all processes of a job the same (on every "
            "host the same --nnodes and --nproc-per-node, or --worker_num)"));
  }
  if (identity) c.known = *identity;
  return identity;
} catch (const std::system_error& error) {  // As in start(); of a spare that is given its place.
  return os::no_task("this process can not take part in a job", error.code().value());
}

bool Worker::solo() const {
  return control_->settings.role == config::Role::kNone;
}
Rank Worker::bound_rank() const {
  return control_->bound_rank;
}
void Worker::note_step(Version version) const {
  tell_lifeline(version);
}
bool Worker::waits_spare() const {
  return !solo() && control_->settings.spare_fd >= 0 && !control_->promoted;
}
const config::Settings& Worker::settings() const {
  return control_->settings;
}
const io::Trace& Worker::trace() const {
  return control_->trace;
}

KeyValues& Worker::key_values() {
  return control_->key_values;
}

void Worker::tell(const trainer::Event& event) {
  control_->tell(event);
}

trainer::Work Worker::next_work() {
  Control& c = *control_;
  std::unique_lock lock(c.mutex);
  for (;;) {
    if (!c.work.empty()) {
      trainer::Work work = std::move(c.work.front());
      c.work.pop_front();
      return work;
    }
    const auto deadline = c.trainer.deadline();
    const Instant left = deadline ? *deadline - io::Loop::now() : Instant(config::kNever);
    if (left > Duration{}) {
      c.changed.wait_until(lock, std::chrono::steady_clock::now() + left);
      continue;
    }
    lock.unlock();
    c.tell(trainer::TimePassed{});
    lock.lock();
  }
}

Generation Worker::generation() const {
  const std::lock_guard lock(control_->mutex);
  return control_->trainer.generation();
}

void Worker::on_stop(std::function<bool(Generation)> handler) {
  const std::lock_guard lock(control_->mutex);
  control_->stop_groups = std::move(handler);
}

Neighbours& Worker::neighbours() {
  return control_->neighbours;
}

Status Worker::pause(Duration limit) {
  Control& c = *control_;
  std::unique_lock lock(c.mutex);
  const auto waited = c.wait(lock, limit, [] { return false; });
  return waited ? Status{} : Status{waited.error()};
}

Status Worker::end() {
  if (solo() || waits_spare()) return {};
  tell(trainer::EndCalled{});
  const trainer::Work work = next_work();
  const auto& result = std::get<trainer::Return>(work);  // There is nothing else to do.
  switch (result.what) {
    case trainer::Return::What::kEnded:
      let_go_of_lifeline();
      return {};
    case trainer::Return::What::kEndUnconfirmed:
      std::fprintf(stderr,
                   "holdfast: the scheduler has not confirmed the end of this training; the "
                   "process ends all the same\n");
      return {};
    default:
      return Error{Blame::kWorld, wording::in_words(result.reason)};
  }
}

Error Worker::fail(const wire::Reason& reason) {
  Control& c = *control_;
  c.post(member::TrainingFailed{reason});
  if (!solo()) {
    std::unique_lock lock(c.mutex);
    c.changed.wait_for(lock, kFailLimit, [&] { return c.over || c.out_of_reach; });
  }
  return Error{Blame::kWorld, wording::in_words(reason)};
}

Error Worker::fail(std::string words) {
  return fail({.kind = wire::Reason::Kind::kProgram, .detail = std::move(words)});
}

}  // namespace holdfast::runtime
