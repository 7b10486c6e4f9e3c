// Does the work that the trainer machine gives to the training thread of a session.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/text.h"
#include "core/planner/holders.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/folder.h"
#include "os/lost_pages.h"
#include "os/process.h"
#include "os/slice.h"
#include "runtime/jobs/snapshots.h"
#include "runtime/worker/session_parts.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using collective::Group;
using collective::Outcome;
using namespace std::chrono_literals;

collective::CurrentGeneration::Options current_options(Worker& worker, const Identity& identity,
                                                       const std::shared_ptr<os::Board>& board) {
  return {.directory = identity.directory,
          .run_id = identity.run_id,
          .join_timeout = worker.settings().replacement_timeout,
          .abort_patience = worker.solo() ? Duration{} : worker.settings().node_timeout,
          .played = worker.shared_rehearsal(),
          .team_operations = {board, &board->team_operations},
          .team_waits = {board, &board->team_waits}};
}

trainer::Outcome outcome_of(Outcome outcome) {
  if (outcome == Outcome::kDone) return trainer::Outcome::kDone;
  return outcome == Outcome::kAborted ? trainer::Outcome::kStopped : trainer::Outcome::kRefused;
}

}  // namespace

Session::Parts::Parts(Worker& w, Identity i, std::unique_ptr<StateStore> s)
    : worker(w),
      identity(std::move(i)),
      store(std::move(s)),
      regions(std::make_shared<collective::Regions>(identity.directory, identity.rank)),
      board(os::lifeline_board(w.settings().lifeline)),
      current(std::make_shared<collective::CurrentGeneration>(current_options(w, identity, board))),
      queue(std::make_shared<collective::Queue>([this] { sums_thread = os::this_thread(); },
                                                [this] { worker.tell(trainer::SumsIdle{}); })) {
  if (identity.servers > 0 && !identity.serves()) {
    tables = std::make_unique<TableClient>(w, identity, current);
  }
}

void Session::Parts::enter(Generation entered) {
  board->enter(generation = entered);
}

trainer::Return Session::Parts::call(const trainer::Event& event) {
  worker.tell(event);
  return *go_on(true);
}

std::optional<trainer::Return> Session::Parts::go_on(bool is_filled) {
  for (;;) {
    const trainer::Work work = worker.next_work();
    if (const auto* result = std::get_if<trainer::Return>(&work)) return *result;
    const auto* repair = std::get_if<trainer::Repair>(&work);
    if (!is_filled && repair != nullptr && needs_beginning(*repair)) {
      was_cleared = store->has_remains();
      if (was_cleared) store->clear();
      due = *repair;
      return std::nullopt;
    }
    std::visit(
        [&](const auto& w) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(w)>, trainer::Return>) do_work(w);
        },
        work);
  }
}

// Whether this rank has to fill version 0: all of it, or its private part.
bool Session::Parts::needs_beginning(const trainer::Repair& work) const {
  const bool begins = work.order.act == wire::Act::kBegin || work.order.act == wire::Act::kReceive;
  return begins && work.version == 0 && (work.order.moved || version() == kNoVersion);
}

void Session::Parts::do_work(const trainer::Repair& work) {
  now(Doing::kRecovering);
  end_keeping();
  Status repaired;
  StateStore::Received received;
  if (work.order.moved) store->forget_held();
  switch (work.order.act) {
    case wire::Act::kKeep:
      break;
    case wire::Act::kBegin:
      if (store->look_for_losses(true).pages > 0) {
        repaired = Error{Blame::kWorld, "memory was lost while it was filled; start the job again"};
      }
      if (const Status begun = store->begin(begin_position); !begun) {
        (void)worker.fail(begun.error().what);  // No other try would do better.
        repaired = begun;
      }
      break;
    case wire::Act::kFinish:
      store->finish();
      break;
    case wire::Act::kReceive:
      if (const auto came = store->receive(work.order, work.version)) {
        received = *came;
      } else {
        repaired = came.error();
      }
      break;
    case wire::Act::kLoad: {
      if (!store->is_in_place()) {
        std::fprintf(stderr,
                     "holdfast: the memory of this rank was removed from %s. The process ends, so "
                     "that another one takes its place\n",
                     identity.directory.c_str());
        (void)::kill(::getpid(), SIGKILL);
      }
      const std::string& name = work.order.snapshot;
      const std::string dir = folder_with(worker.settings(), name);
      if (const auto came = store->load(dir, name, work.version)) {
        received = *came;
      } else {
        repaired = came.error();
        // An older one would fit no better.
        if (came.error().blame == Blame::kUser) (void)worker.fail(came.error().what);
      }
      break;
    }
  }
  if (repaired && !worker.solo()) {
    worker.trace().event("repair", {{"rank", identity.rank},
                                    {"generation", work.generation},
                                    {"version", work.version},
                                    {"kind", name(work.order.act)},
                                    {"source", work.order.source.holder},
                                    {"private_source", work.order.private_source.holder}});
  }
  const bool too_late = !repaired && worker.neighbours().is_repair_stopped();
  worker.tell(trainer::Repaired{store->holding(), repaired ? "" : repaired.error().what, too_late,
                                received.bytes, received.is_of_pages});
}

Group::Options Session::Parts::group_options(Generation formed) {
  const auto& settings = worker.settings();
  const int agreed = settings.replicas + 2 * int(settings.drift) + 4 * settings.digest_every;
  Group::Options options{.directory = identity.directory,
                         .generation = formed,
                         .run_id = identity.run_id,
                         .rank = identity.rank,
                         .world_size = identity.all_ranks(),
                         .layout = worker.neighbours().layout(),
                         .agreed = static_cast<std::uint64_t>(agreed)};
  options.join_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(settings.replacement_timeout);
  if (identity.servers == 0) for_workers(options);
  return options;
}

// What only the group of the workers has: sums, and operations that tell who holds up whom.
void Session::Parts::for_workers(Group::Options& options) {
  options.registered = store->gradients();
  options.regions = regions;
  options.come_to = {board, &board->operations};
}

// The group of the workers, once that of all ranks has formed by `options`. Null: this is a server.
Result<std::shared_ptr<Group>> Session::Parts::form_workers(Group::Options options,
                                                            const std::stop_token& stopped) {
  if (identity.serves()) return std::shared_ptr<Group>();
  options.group = "workers";
  options.directory = cat(identity.directory, "/workers");
  options.world_size = identity.world_size;
  options.layout = of_workers(std::move(options.layout));
  for (Rank rank = 0; rank < identity.world_size; ++rank) options.world_ranks.push_back(rank);
  for_workers(options);
  if (const auto made = os::Folder::make(options.directory); !made) return made.error();
  return current->join(options, stopped);
}

collective::Layout Session::Parts::of_workers(collective::Layout layout) const {
  const auto count = static_cast<std::size_t>(identity.world_size);
  if (layout.host_of.size() > count) layout.host_of.resize(count);
  if (layout.domain_of.size() > count) layout.domain_of.resize(count);
  return layout;
}

void Session::Parts::do_work(const trainer::JoinGroup& work) {
  now(Doing::kRecovering);
  enter(work.generation);
  const Instant began = io::Loop::now();
  auto options = group_options(generation);
  const std::stop_token stopped = current->begin(generation, options.layout);
  auto formed = current->join(options, stopped);
  Result<std::shared_ptr<Group>> workers = formed;
  if (formed && identity.servers > 0) workers = form_workers(options, stopped);
  auto status = !workers ? Status(workers.error()) : join_copies(options.layout, stopped, **formed);
  const bool linked = !options.layout.host_of.empty();
  if (!status) {
    // Without abort(), the others would take the group's end for the end of this rank's training.
    if (formed) (*formed)->abort();
    if (workers && *workers) (*workers)->abort();
    const Error& error = status.error();
    // Printed here, because the other ranks may only try again and again, and can not say what is
    // wrong.
    if (linked && !stopped.stop_requested()) {
      std::fprintf(stderr, "holdfast: generation %s could not be formed: %s\n",
                   cat(generation).c_str(), error.what.c_str());
    }
    return worker.tell(
        trainer::NotFormed{error.blame == Blame::kUser, error.what, store->holding().held, linked});
  }
  everyone = *std::move(formed);
  group = *workers ? *std::move(workers) : everyone;
  if (group != everyone) on_abort_of_all.emplace(stopped, [all = everyone] { all->abort(); });
  if (tables) tables->meet_in(everyone);
  current->formed(group);
  // The sums thread gets its usual slice back for steps.
  if (sums_thread != 0) os::take_usual_slice(sums_thread);
  const auto took = std::chrono::duration<double, std::milli>(io::Loop::now() - began).count();
  worker.trace().event("reform",
                       {{"rank", identity.rank}, {"generation", generation}, {"ms", took}});
  say_cover(linked);
  worker.tell(trainer::Formed{is_aborted(), linked, exchanges, store->holding().held});
}

wording::Cover Session::Parts::cover_now(bool has_other_hosts) const {
  using wording::Cover;
  if (identity.servers > 0) {
    const auto holder_of =
        planner::holders(worker.neighbours().layout().domain_of, identity.world_size);
    const auto first = std::min(holder_of.size(), static_cast<std::size_t>(identity.world_size));
    const bool all = first < holder_of.size() && holder_of.back() != kNoRank;
    return all && worker.settings().replicas > 0 ? Cover::kRowsHeld : Cover::kRowsNotHeld;
  }
  if (!store->holding().private_is_own) return Cover::kNothingOwn;
  if (copies) return Cover::kHeld;
  return has_other_hosts ? Cover::kNotHeld : Cover::kOneHost;
}

// Rank 0 says for all what the loss of a host would take along: when the job begins, and after each
// change of that.
void Session::Parts::say_cover(bool has_other_hosts) {
  if (identity.rank != 0 || (!has_other_hosts && !cover)) return;
  const auto now = cover_now(has_other_hosts);
  if (std::exchange(cover, now) == now || !worker.settings().protect) return;
  std::fprintf(stderr, "holdfast: %s\n", wording::in_words(now, store->own_bytes()).c_str());
}

// Joins PrivateCopies if only this rank has its private part, which would be lost with its host.
Status Session::Parts::join_copies(const collective::Layout& layout, const std::stop_token& stopped,
                                   const Group& formed) {
  const auto& settings = worker.settings();
  const bool wanted = settings.replicas > 0 && settings.protect && store->holding().private_is_own;
  exchanges = wanted && !layout.host_of.empty();
  if (store->holds_by_itself()) {
    const auto holder_of = planner::holders(layout.domain_of, identity.world_size);
    std::vector<Rank> wards;
    for (std::size_t rank = 0; exchanges && rank < holder_of.size(); ++rank) {
      if (holder_of[rank] == identity.rank) wards.push_back(static_cast<Rank>(rank));
    }
    return store->hold(wards, stopped);
  }
  if (!exchanges) return {};
  // The holder is given the committed bytes, so what is lost of them has to be known before.
  for (const auto& part : store->own_parts(version())) os::touch(part.bytes);
  was_used = true;
  if (has_lost_pages()) {
    return Error{Blame::kWorld, "memory errors have taken pages of this rank's state"};
  }
  auto joined = PrivateCopies::join(
      {.layout = of_workers(layout),
       .generation = generation,
       .rank = identity.rank,
       .deadline = collective::Links::Deadline::clock::now() + settings.replacement_timeout,
       .stop = stopped,
       .must_stop = [&formed] { return formed.aborted(); }},
      *store);
  if (!joined) return joined.error();
  copies = *std::move(joined);
  return {};
}

void Session::Parts::do_work(const trainer::LeaveGroup&) {
  now(Doing::kRecovering);
  drop_group();
  worker.tell(trainer::LeftGroup{});
}

void Session::Parts::do_work(const trainer::AwaitSums&) {
  now(Doing::kSumming);
  wait_for_sums();
  worker.tell(trainer::SumsDone{outcome_of(mark), why_not_done()});
}

void Session::Parts::do_work(const trainer::Stage& work) {
  now(Doing::kStaging);
  if (tables) (void)note(tables->end_step(work.version));
  store->stage(work.version, *step);
  worker.tell(trainer::Staged{});
}

void Session::Parts::do_work(const trainer::ExchangeCopies& work) {
  now(Doing::kCopying);
  if (copies && !copies->exchange(work.version)) note(Outcome::kAborted);
  worker.tell(trainer::CopiesExchanged{outcome_of(mark), store->holding().held});
}

void Session::Parts::do_work(const trainer::Arrive&) {
  now(Doing::kCommitting);
  if (has_lost_pages()) return worker.tell(trainer::Arrived{trainer::Outcome::kStopped, ""});
  if (auto* rehearsal = worker.rehearsal()) rehearsal->arrive();  // A rehearsal ends here.
  (void)idle_group();
  note(everyone->barrier());
  worker.tell(trainer::Arrived{outcome_of(mark), why_not_done()});
}

std::string Session::Parts::why_not_done() const {
  if (mark == Outcome::kDone) return {};
  if (!table_why.empty()) return table_why;
  const std::string why = group->why();
  return why.empty() ? everyone->why() : why;
}

// Copies this rank's part of a snapshot to where its agent takes it from. What it copies is not
// changed before the next update, so the program goes on meanwhile.
void Session::Parts::begin_keeping(bool has_lost) {
  const auto fail = [this](const std::string& why) {
    worker.tell(trainer::PartKept{version(), why});
  };
  if (has_lost) return fail("memory errors have taken pages of the state");
  const std::string prefix = cat(identity.directory, '/', parts_begin(identity.rank));
  const std::string path = cat(prefix, version());
  for (const std::string& name : os::names_in(identity.directory)) {
    const std::string former = cat(identity.directory, '/', name);
    if (!former.starts_with(prefix)) continue;
    // The agent may still read one that is not free.
    const bool is_free = former == cat(prefix, kFreePart);
    if (!is_free || ::rename(former.c_str(), path.c_str()) != 0) ::unlink(former.c_str());
  }
  try {
    keeping = std::thread([this, keep = store->keep(path)] {
      os::take_usual_slice();
      kept = keep();
    });
  } catch (const std::system_error& error) {
    fail(os::no_task("cannot copy beside the training", error.code().value()).what);
  }
}

// Before what is being copied changes. Not earlier: in the next step the ranks are compared, and it
// may be found that this one's memory was wrong.
void Session::Parts::end_keeping(const std::string& spoilt) {
  if (!keeping.joinable()) return;
  keeping.join();
  worker.tell(trainer::PartKept{version(), kept ? spoilt : kept.error().what});
}

void Session::Parts::do_work(const trainer::Update& work) {
  now(Doing::kUpdating);
  end_keeping();
  store->update(static_cast<std::size_t>(worker.settings().update_threads));
  worker.note_step(version());
  board->steps.fetch_add(1, std::memory_order_relaxed);
  trace_step();
  was_used = true;  // What is lost by now is of the version that was made.
  const bool has_lost = has_lost_pages();
  if (work.keeps) begin_keeping(has_lost);
  worker.tell(trainer::Updated{});
}

bool Session::Parts::has_lost_pages() {
  const auto losses = store->look_for_losses(std::exchange(was_used, false));
  if (losses.pages == 0) return false;
  if (auto* rehearsal = worker.rehearsal()) rehearsal->skip("its process has lost memory");
  const auto pages = static_cast<std::uint32_t>(losses.pages);
  if (losses.can_wait) {
    worker.tell(trainer::PagesLost{store->holding(), 0});
    worker.remark({.kind = wire::Reason::Kind::kPagesLost,
                   .count = pages,
                   .detail = "They hold the last version of its state, and the next one takes its "
                             "place: nothing is lost"});
    return false;
  }
  if (group) abort_groups();
  worker.tell(trainer::PagesLost{store->holding(), pages});
  return true;
}

void Session::Parts::drop_group() {
  copies.reset();
  if (!group) return;
  // Without abort(), the others take this for the end of this rank's training.
  if (!ended) abort_groups();
  queue->drain();
  current->formed(nullptr);
  if (tables) tables->meet_in(nullptr);
  on_abort_of_all.reset();
  everyone.reset();
  group.reset();
  sums.clear();
}

// Called in the control thread, so it must not block.
bool Session::Parts::stop(Generation stopped) {
  if (on_stop) on_stop(stopped);
  current->abort(stopped);
  const bool idle = queue->is_idle();
  // The training thread waits for the sums thread.
  if (sums_thread != 0) (void)os::take_short_slice(sums_thread);
  return idle;
}

Outcome Session::Parts::note(Outcome outcome) {
  if (mark == Outcome::kDone) mark = outcome;
  return outcome;
}

Outcome Session::Parts::note(const collective::Verdict& verdict) {
  if (mark == Outcome::kDone) table_why = verdict.why;
  return note(verdict.outcome);
}

void Session::Parts::abort_groups() {
  group->abort();
  everyone->abort();
}

// Waits for all sums that were started.
void Session::Parts::wait_for_sums() {
  queue->drain();
  for (const auto& sum : sums) note(sum ? sum->wait()->outcome : Outcome::kAborted);
  sums.clear();
}

// The group, for an operation in the caller's thread. Waits for the queue first, because operations
// run in the order of calls.
Group& Session::Parts::idle_group() {
  queue->drain();
  return *group;
}

// Called when this rank has made a step, or has found that a recovery has committed it.
void Session::Parts::trace_step() {
  worker.trace().event("step", {{"rank", identity.rank},
                                {"step", version()},
                                {"generation", generation},
                                {"loss", loss},
                                {"samples", samples}});
}

// The error to return to the program. A failure of the whole job is reported to the scheduler
// first.
Error Session::Parts::error_of(const trainer::Return& result) {
  wire::Reason reason = result.reason;
  if (reason.rank == kNoRank && reason.kind == wire::Reason::Kind::kNotRepaired) {
    reason.rank = identity.rank;
  }
  const bool tells = result.what == trainer::Return::What::kFailed && !worker.solo();
  return tells ? worker.fail(reason) : Error{Blame::kWorld, wording::in_words(reason)};
}

}  // namespace holdfast::runtime
