#include "runtime/worker/worker.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/heeded.h"
#include "os/process.h"
#include "runtime/jobs/given_paths.h"
#include "runtime/jobs/solo_folder.h"
#include "runtime/jobs/tls_choice.h"
#include "runtime/worker/lifeline_holder.h"
#include "runtime/worker/serve.h"
#include "runtime/worker/worker_control.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFailLimit = 5s;

// Static, so exit() ends it in good order.
SoloFolder& solo_folder() {
  static SoloFolder folder;
  return folder;
}

// Whether there is a Worker. It owns all that is static here.
std::atomic<bool> taken = false;

}  // namespace

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
    if (!placed && stood_by) {  // Ends like a spare that was not needed: with 0.
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
    // The scheduler was told when set_tls() failed (secure_channel.cc).
    if (const auto with = with_program_tls(settings); !with) return with.error();
  }
  const auto agent = config::process_name(settings.agent);
  if (agent && !settings.snapshot.empty()) {
    // A cluster's manager signals all processes at once. It is the agent that makes a last
    // snapshot.
    os::heed_only(agent->pid, {SIGTERM, SIGUSR1});
  }
  auto control = std::make_unique<Control>(settings);
  control->agent.let_it_look();
  auto lifeline = LifelineHolder::start(settings);
  if (!lifeline) return lifeline.error();
  held_lifeline() = *std::move(lifeline);
  const bool rehearses = settings.rehearse >= 0;
  if (!rehearses) {  // A rehearsal is no part of the job, so it has no trace.
    auto trace = open_trace(settings, "worker");
    if (!trace) return trace.error();
    control->trace = *std::move(trace);
  }
  control->trace.event("start", {{"role", settings.spare_fd >= 0 ? "spare" : "worker"},
                                 {"node", settings.spare_fd >= 0 ? "" : settings.node_id}});
  if (settings.role != config::Role::kNone && settings.spare_fd < 0 && !rehearses) {
    control->begin();
  }
  taken = true;
  return std::unique_ptr<Worker>(new Worker(std::move(control)));
} catch (const std::system_error& error) {  // A thread or a descriptor that can not be had.
  return os::no_task("this process can not take part in a job", error.code().value());
}

Result<Identity> Worker::identity() try {
  Control& c = *control_;
  c.training_thread = os::this_thread();
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
  if (c.settings.rehearse >= 0) {
    if (const auto begun = c.begin_rehearsal(); !begun) return begun.error();
    c.known = c.rehearsal->identity();
    return *c.known;
  }
  auto identity = c.place_in_world();
  if (identity && !solo() && identity->world_size != settings().worker_num) {
    return fail(
        cat("MS_WORKER_NUM is ", settings().worker_num, " for node '", settings().node_id,
            "', but the job has ", identity->world_size,
            " workers by that of its scheduler: give all processes of a job the same (on every "
            "host the same --nnodes and --nproc-per-node, or --worker_num; and of servers)"));
  }
  if (!identity) return identity;
  c.known = *identity;
  if (identity->serves()) serve_and_exit();
  if (settings().role == config::Role::kServer) {
    return fail(cat("node '", settings().node_id, "' was started as a parameter server, and has a ",
                    "worker's place: give all processes of a job the same MS_SERVER_NUM"));
  }
  return identity;
} catch (const std::system_error& error) {  // As in start(), for a spare that has got its place.
  return os::no_task("this process can not take part in a job", error.code().value());
}

void Worker::serve_and_exit() {
  const Status served = serve_tables(*this);
  if (!served) std::fprintf(stderr, "holdfast: %s\n", served.error().what.c_str());
  std::exit(served ? 0 : 1);
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

const std::shared_ptr<Rehearsal>& Worker::shared_rehearsal() const {
  return control_->rehearsal;
}

Drills& Worker::drills() {
  return control_->drills;
}
Meter& Worker::meter() {
  return control_->meter;
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
  if (rehearsal() != nullptr) rehearsal()->differ("the program ends before it comes to the step");
  tell(trainer::EndCalled{});
  const trainer::Work work = next_work();
  // After EndCalled the machine has no other work.
  const auto& result = std::get<trainer::Return>(work);
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

void Worker::note_holds(std::string json) {
  const std::lock_guard lock(control_->mutex);
  control_->holds = std::move(json);
}

void Worker::remark(const wire::Reason& what) {
  // An agent prints it, and without one the scheduler.
  if (solo()) std::fprintf(stderr, "holdfast: warning: %s\n", wording::in_words(what).c_str());
  control_->post(member::Told{wire::Remark{what}});
}

Error Worker::fail(const wire::Reason& reason) {
  Control& c = *control_;
  if (c.rehearsal) c.rehearsal->skip(wording::in_words(reason));
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
