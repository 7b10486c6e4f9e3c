// Server: carries out what the controller machine decides, and tells it what happens.
//
// Decides nothing itself. Everything runs in the loop's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "config/settings.h"
#include "core/controller/machine.h"
#include "io/connection.h"
#include "io/journal.h"
#include "io/journal_writer.h"
#include "io/loop.h"
#include "io/trace.h"
#include "runtime/jobs/agent_watch.h"
#include "runtime/scheduler/local_workers.h"
#include "runtime/scheduler/recovery_report.h"
#include "runtime/scheduler/taken_places.h"

namespace holdfast::runtime {

// "2030-01-31 23:59:59.123 scheduler: <text>" to stdout, in UTC. Thread-safe.
void say(std::string_view text);

// All that a scheduler opens before it serves.
struct Opened {
  config::Settings settings;
  std::string directory;                 // The job's runtime folder.
  std::unique_ptr<io::Journal> journal;  // It exists; removed once the job has ended.
  wire::Memory memory;                   // From the journal; or only a new formation.
  std::string suspect_host;              // See controller::Options.
  io::Trace trace;
};

class Server {
 public:
  // Requires: `loop` outlives the server.
  Server(io::Loop& loop, Opened opened);

  // Serves until the job has ended; returns the process's exit code. A process that proves its
  // membership to the listener gets a link.
  int run(io::Listener& listener, io::Membership membership);

 private:
  io::Listening listening(io::Membership membership);
  void tell_statuses();
  void accept(std::shared_ptr<io::Connection> connection, wire::PeerKind kind);
  void refused(const std::string& peer, const std::string& why);
  void received(controller::Link link, wire::Message message);
  void closed(controller::Link link);
  void written(const Result<std::size_t>& stores);
  void step(const controller::Event& event);
  void carry_out(const controller::Store& action);
  void carry_out(const controller::Send& action);
  void carry_out(const controller::Answer& action);
  void carry_out(const controller::Close& action);
  void carry_out(const controller::Probe& action);
  void carry_out(const controller::Note& action);
  void carry_out(const controller::End& action);
  void carry_out(const controller::Leave& action);
  void set_timer();
  void remember_local(controller::Link link, const wire::Register& who);
  void look_for_locals();
  void prove_dead(const LocalWorker& local, Instant until, Duration next);
  void report(std::optional<RecoveryReport> report);
  void publish(const RecoveryReport& report);
  void publish_late();
  void watch_agent();
  void read_reports();
  void note_in_trace(const controller::Note& note);
  void answered(controller::Link link);
  void send_answers();
  controller::Answer next_answer(std::deque<controller::Answer>::iterator from);  // Removes it.
  void withdraw_answer(controller::Link link, const wire::Get& get);
  void stop_if_alone();
  void interrupted(int signal);
  void clean_up();

  io::Loop& loop_;
  Opened opened_;
  const config::Settings& settings_ = opened_.settings;
  const std::string reports_path_ = opened_.directory + "/recoveries.jsonl";
  const AgentWatch agent_{settings_};
  io::JournalWriter journal_{loop_, std::move(opened_.journal),
                             [this](const auto& stores) { written(stores); }};
  std::uint64_t to_store_ = 0;  // Stores so far.
  std::uint64_t stored_ = 0;    // Stores that are durable.
  struct Status {
    std::uint64_t to_store = 0;
    std::string json;
  };
  std::map<controller::Link, Status> statuses_;  // Held until what they tell is durable.
  controller::Machine machine_;
  RecoveryLog log_;
  std::optional<RecoveryReport> late_;  // Held until it is known how its first rank died.
  std::deque<std::string> reports_;     // Lines of recoveries.jsonl, the newest last.
  std::map<controller::Link, std::shared_ptr<io::Connection>> links_;
  LocalWorkers by_hand_{opened_.directory};
  std::map<controller::Link, LocalWorker> locals_;
  controller::Link newest_link_ = 0;
  struct Refusals {
    std::uint64_t unsaid = 0;
    std::optional<Instant> said;
  };
  std::map<std::string, Refusals> refused_;  // By reason; "" for all that exceed kReasonsKept.
  TakenPlaces taken_;
  io::Loop::TimerId timer_ = io::Loop::TimerId::kNone;
  std::optional<Instant> timer_at_;
  bool under_tls_ = false;
  bool ended_ = false;
  bool leaves_ = false;  // Stops the loop once no link is left.
  std::optional<int> exit_code_;
  std::deque<controller::Answer> answers_;  // Answers that wait to be sent.
  // In how many of answers_ each value is.
  std::map<const wire::KeyValue*, std::size_t> waiting_;
  std::size_t waiting_bytes_ = 0;         // The size of these values, each counted once.
  std::set<controller::Link> answering_;  // The links to which a large answer is on its way.
  bool answers_timer_ = false;
};

}  // namespace holdfast::runtime
