#include "runtime/scheduler/server.h"

#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/text.h"
#include "os/host.h"
#include "os/process.h"
#include "os/slice.h"
#include "runtime/jobs/job_files.h"
#include "runtime/scheduler/say.h"
#include "runtime/scheduler/status.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using controller::Link;
using controller::Note;

constexpr Duration kProbePatience = std::chrono::seconds(1);
constexpr Duration kProofPatience = std::chrono::seconds(5);  // For a worker's process to end.
constexpr std::size_t kReasonsKept = 8;
constexpr Duration kRefusedPause = std::chrono::minutes(1);
constexpr Duration kBetweenStatuses = std::chrono::seconds(1);
constexpr Duration kUntilTrim = std::chrono::seconds(1);
constexpr Duration kLastWords = std::chrono::milliseconds(300);
constexpr Duration kLinger = std::chrono::seconds(3);          // After the end, for latecomers.
constexpr Duration kAgentPatience = std::chrono::seconds(10);  // After the end, for our own agent.

// How the id of this scheduler's agent begins (see machine_options() in runtime/agent/agent.cc).
std::string agent_of(const config::Settings& settings) {
  if (settings.agent.empty()) return {};
  return cat(os::host_name(), '-', settings.agent.substr(0, settings.agent.find(':')), '-');
}

controller::Options machine_options(const Opened& opened) {
  const config::Settings& settings = opened.settings;
  return {.job = settings.job,
          .world_size = settings.worker_num + settings.server_num,
          .servers = settings.server_num,
          .topology_timeout = settings.topo_timeout,
          .lease = settings.node_timeout,
          .replacement_timeout = settings.replacement_timeout,
          .host_silence = settings.host_timeout,
          .hang_timeout = settings.hang_timeout,
          .takes_drills = settings.allow_inject,
          .by_agent = settings.attempt != 0,
          .own_host = os::host_name(),
          .boot = os::boot_name(),
          .own_agent = agent_of(settings),
          .suspect_host = opened.suspect_host,
          .snapshots = {.wanted = !settings.snapshot.empty(),
                        .every = settings.snapshot_every.time,
                        .steps = settings.snapshot_every.steps,
                        .keep = static_cast<std::size_t>(settings.snapshot_keep)},
          .comes_back = settings.enable_recovery,
          .agent_patience = kAgentPatience};
}

}  // namespace

Server::Server(io::Loop& loop, Opened opened)
    : loop_(loop),
      opened_(std::move(opened)),
      machine_(machine_options(opened_), opened_.memory.formation),
      reports_(loop, opened_.directory, opened_.memory.formation->recoveries,
               [this](const auto& fault) {
                 return controller::drill_behind(fault, machine_.remarks());
               }) {
  opened_.memory.formation->roster = {};  // The machine has it.
}

int Server::run(io::Listener& listener, io::Membership membership) {
  const bool again = opened_.memory.formation->generation != 0;
  under_tls_ = membership.tls != nullptr;
  say(cat(again ? "serves again job " : "serves job ", settings_.job, " at ",
          host_and_port(settings_.sched_host, settings_.sched_port), under_tls_ ? " under TLS" : "",
          ", process ", ::getpid(),
          again ? cat(", from generation ", opened_.memory.formation->generation, " of its journal")
                : ""));
  if (again) {
    reports_.load();
  } else {
    reports_.remove();
  }
  opened_.trace.event("start", {{"role", "scheduler"},
                                {"job", settings_.job},
                                {"port", settings_.sched_port},
                                {"attempt", settings_.attempt},
                                {"taken_back", again}});
  loop_.on_signals({SIGINT, SIGTERM}, [this](int signal) { interrupted(signal); });
  loop_.post([&] {
    step(controller::Started{std::exchange(opened_.memory.kept, {}),
                             std::exchange(opened_.memory.writers, {}),
                             std::exchange(opened_.memory.remarks, {})});
    look_for_locals();
    listener.serve(listening(std::move(membership)));
  });
  watch_agent();
  (void)os::take_short_slice();  // In a recovery all ranks wait for this thread.
  loop_.run();
  reports_.publish();
  links_.clear();
  if (ended_) clean_up();
  return exit_code_.value_or(machine_.head().success ? 0 : 1);
}

io::Listening Server::listening(io::Membership membership) {
  return {.membership = std::move(membership),
          .on_accept = [this](auto connection, auto kind) { accept(std::move(connection), kind); },
          .on_refused = [this](const auto& peer, const auto& why) { refused(peer, why); },
          .door = {.most = static_cast<std::size_t>(settings_.door_connections),
                   .patience = settings_.door_seconds}};
}

// Logs each reason once a minute at most, because strangers may come by the thousand.
void Server::refused(const std::string& peer, const std::string& why) {
  const bool is_new = !refused_.contains(why) && refused_.size() >= kReasonsKept;
  auto& [unsaid, said] = refused_[is_new ? "" : why];
  ++unsaid;
  if (said && io::Loop::now() - *said < kRefusedPause) return;
  said = io::Loop::now();
  const auto others = std::exchange(unsaid, 0) - 1;
  say(cat("refused the connection of ", peer, ": ", why,
          others == 0 ? "" : cat(" (and of ", others, " more since this was last said)")));
}

void Server::accept(std::shared_ptr<io::Connection> connection, wire::PeerKind kind) {
  const Link link = ++newest_link_;
  links_[link] = connection;
  connection->start(
      {.on_message = [this, link](wire::Message message) { received(link, std::move(message)); },
       .on_closed = [this, link](const Error&) { closed(link); },
       .on_unreadable =
           [this, link](const Error& why) {
             step(controller::Unreadable{link, why.what});
           },
       .on_drained = [this, link] { answers_.drained(link); }});
  step(controller::Connected{link, kind});
}

void Server::received(Link link, wire::Message message) {
  if (std::holds_alternative<wire::StatusQuery>(message)) {
    statuses_[link] = {to_store_, status()};
    return tell_statuses();
  }
  if (const auto* who = std::get_if<wire::Register>(&message)) remember_local(link, *who);
  if (const auto* get = std::get_if<wire::Get>(&message)) answers_.withdraw(link, get->id);
  const auto clock = std::chrono::system_clock::now().time_since_epoch();
  const auto unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(clock).count();
  step(controller::Received{link, std::move(message), unix_ms});
}

std::string Server::status() const {
  return status_json(machine_, settings_.worker_num, settings_.server_num, under_tls_,
                     taken_.newest(), reports_.newest());
}

// Sends the statuses that tell only of durable stores: a crash must not undo what was told (P1).
void Server::tell_statuses() {
  std::erase_if(statuses_, [this](const auto& status) {
    const auto& [link, said] = status;
    if (said.to_store > stored_) return false;
    links_.at(link)->send(wire::StatusReply{said.json});
    return true;
  });
}

void Server::closed(Link link) {
  links_.erase(link);
  statuses_.erase(link);
  answers_.drained(link);
  step(controller::Closed{link});
  if (const auto local = locals_.extract(link); !local.empty()) {
    prove_dead(local.mapped(), io::Loop::now() + kProofPatience, std::chrono::milliseconds(1));
  }
  stop_if_alone();
}

void Server::step(const controller::Event& event) {
  for (const auto& action : machine_.step(io::Loop::now(), event)) {
    std::visit([&](const auto& a) { carry_out(a); }, action);
  }
  set_timer();
}

void Server::written(const Result<std::size_t>& stores) {
  if (!stores) {
    // A scheduler that can not store must send nothing more. The next one starts from the last
    // durable store.
    say(cat("the journal can not be written, so this process ends: ", stores.error().what));
    std::_Exit(1);
  }
  for (std::size_t i = 0; i < *stores; ++i) {
    ++stored_;
    step(controller::Stored{});
  }
  tell_statuses();
}

void Server::carry_out(const controller::Store& action) {
  ++to_store_;
  journal_.store(action);
}

void Server::carry_out(const controller::Send& action) {
  const auto found = links_.find(action.link);
  if (found == links_.end()) return;
  const auto* part = std::get_if<wire::Assignment>(&action.message);
  if (part != nullptr && part->order.act != wire::Act::kKeep) {
    opened_.trace.event("repair", {{"generation", part->generation},
                                   {"version", part->version},
                                   {"kind", name(part->order.act)},
                                   {"source", part->order.source.holder}});
  }
  if (const auto* refused = std::get_if<wire::Refused>(&action.message);
      refused != nullptr && refused->reason.kind == wire::Reason::Kind::kOtherProtocol) {
    // A process of a former protocol knows no reasons, only sentences.
    found->second->send(wire::Refused{wording::in_words(refused->reason), refused->reason});
    return;
  }
  found->second->send(action.message);
}

void Server::carry_out(const controller::Close& action) {
  if (const auto found = links_.find(action.link); found != links_.end()) found->second->close();
}

void Server::carry_out(const controller::Probe& action) {
  const auto to = endpoint_in(action.endpoint);
  if (!to) return;
  io::probe(loop_, to->host, to->port, kProbePatience, [this, action] {
    step(controller::NotThere{action.node_id, action.incarnation});
  });
}

void Server::carry_out(const Note& action) {
  note_in_trace(action);
  if (action.kind == Note::Kind::kStop && action.generation == 1) {
    const std::int32_t servers = settings_.server_num;
    say(cat(all_of(settings_.worker_num, "worker"),
            servers != 0 ? cat(" and ", all_of(servers, "server")) : "",
            settings_.worker_num + servers == 1 ? " is here" : " are here"));
  }
  const std::string text = wording::in_words(action.reason);
  if (action.kind == Note::Kind::kFault) say(cat("fault: ", text));
  if (action.kind == Note::Kind::kHeldUp || action.kind == Note::Kind::kRemark) {
    say(text);
    keep_status();
  }
  if (action.kind == Note::Kind::kRefused) say(cat("refused: ", text));
  if (action.kind == Note::Kind::kTaken) {
    if (const auto line = taken_.note(action)) say(*line);
  }
  if (action.kind == Note::Kind::kHow) say(cat("by now it is known that ", text));
  reports_.note(action);
  if (action.kind == Note::Kind::kResume) {
    // Gives back the memory of messages that came from all ranks at once.
    loop_.after(kUntilTrim, [] { (void)::malloc_trim(0); });
  }
}

void Server::carry_out(const controller::End& action) {
  reports_.finish(action.reason);
  const std::string reason = wording::in_words(action.reason);
  say(cat("the job has ", action.success ? "ended" : "failed", ": ", reason));
  opened_.trace.event("end", {{"success", action.success}, {"reason", reason}});
  reports_.keep(status());
  ended_ = true;
}

void Server::carry_out(const controller::Leave& action) {
  leaves_ = !action.lingers;
  loop_.after(kLinger, [this] { loop_.stop(); });
  stop_if_alone();
}

// Writes the status down, in case that all is killed: at once, but not more than once a second.
void Server::keep_status() {
  if (keeps_later_ || ended_) return;
  const Instant now = io::Loop::now();
  if (kept_at_ && now - *kept_at_ < kBetweenStatuses) {
    keeps_later_ = true;
    loop_.at(*kept_at_ + kBetweenStatuses, [this] {
      keeps_later_ = false;
      keep_status();
    });
    return;
  }
  kept_at_ = now;
  reports_.keep(status());
}

void Server::watch_agent() {
  if (agent_.gone()) agent_.follow();
  loop_.after(AgentWatch::kEvery, [this] { watch_agent(); });
}

void Server::stop_if_alone() {
  if (leaves_ && links_.empty()) loop_.stop();
}

void Server::set_timer() {
  const auto at = machine_.deadline();
  if (at == timer_at_) return;
  loop_.cancel(timer_);
  timer_at_ = at;
  if (!at) return;
  timer_ = loop_.at(*at, [this] {
    timer_at_.reset();
    step(controller::TimePassed{});
  });
}

void Server::remember_local(Link link, const wire::Register& who) {
  if (who.attempt != 0 || who.memory != os::shared_memory_name() || who.pid <= 1) return;
  const auto pid = static_cast<pid_t>(who.pid);
  const auto start_time = os::start_time(pid);
  if (!start_time) return;
  locals_[link] = LocalWorker{who.node_id, who.incarnation, pid, *start_time};
  // Written before the lease is on record, so that a scheduler that is started again can prove the
  // worker's death.
  if (const auto kept = by_hand_.add(locals_[link]); !kept) say(kept.error().what);
}

// Workers that were here when the scheduler's predecessor died may have died with it. Those that
// live come back, and their end is seen as usual.
void Server::look_for_locals() {
  if (opened_.memory.formation->generation == 0) return;
  for (const auto& local : by_hand_.load()) {
    prove_dead(local, io::Loop::now() + kProofPatience, std::chrono::milliseconds(1));
  }
}

void Server::prove_dead(const LocalWorker& local, Instant until, Duration next) {
  if (os::is_exiting(local.pid) || !os::same_process_alive(local.pid, local.start_time)) {
    step(controller::ProvenDead{local.node_id, local.incarnation});
    if (const auto kept = by_hand_.remove(local.incarnation); !kept) say(kept.error().what);
  } else if (io::Loop::now() < until) {
    loop_.after(next, [this, local, until, next] { prove_dead(local, until, next * 2); });
  }
}

void Server::note_in_trace(const Note& note) {
  const auto event = [&](std::string_view name) {
    opened_.trace.event(name, {{"generation", note.generation},
                               {"version", note.version},
                               {"rank", note.rank},
                               {"detected_ns", note.detected_ns},
                               {"text", wording::in_words(note.reason)}});
  };
  switch (note.kind) {
    case Note::Kind::kFault:
      return event("fault");
    case Note::Kind::kStop:
      return event("stop");
    case Note::Kind::kPlan:
      return event("plan");
    case Note::Kind::kRepaired:
      return;  // The ranks trace their repairs themselves.
    case Note::Kind::kResume:
      return event("resume");
    case Note::Kind::kRecovered:
      return event("recovered");
    case Note::Kind::kHow:
      return event("how");
    case Note::Kind::kRefused:
      return event("refused");
    case Note::Kind::kHeldUp:
      return event("held_up");
    case Note::Kind::kRemark:
      return event("remark");
    case Note::Kind::kTookOver:
      return;  // That process traces its start itself.
    case Note::Kind::kTaken:
      return;  // Not traced: a process may ask again and again.
  }
}

void Server::interrupted(int signal) {
  exit_code_ = 128 + signal;
  say(cat("interrupted by signal ", signal));
  const auto has_ended = [this] { return machine_.stage() == wire::Stage::kEnded; };
  const bool ended = has_ended();
  step(controller::Interrupted{signal});
  if (has_ended() && !ended) return;  // The machine then leaves as after any end.
  // An agent that ends the job has told why, but the signal may have overtaken its message.
  loop_.after(ended || settings_.attempt == 0 ? Duration{} : kLastWords, [this] { loop_.stop(); });
}

void Server::clean_up() {
  if (const auto removed = journal_.remove(); !removed) say(removed.error().what);
  const bool stays = settings_.enable_recovery && !machine_.head().success;
  if (settings_.attempt > 0 || stays) return;
  if (const auto removed = remove_job_files(opened_.directory); !removed) {
    say(removed.error().what);
  }
}

}  // namespace holdfast::runtime
