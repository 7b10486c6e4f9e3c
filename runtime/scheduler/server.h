// Server: carries out what the controller machine decides, and tells it what happens.
//
// Decides nothing itself. Everything runs in the loop's thread. Its parts (AnswerQueue,
// ReportPublisher, ...) do not know it, nor each other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "config/settings.h"
#include "core/controller/machine.h"
#include "io/connection.h"
#include "io/journal.h"
#include "io/journal_writer.h"
#include "io/loop.h"
#include "io/trace.h"
#include "runtime/jobs/agent_watch.h"
#include "runtime/scheduler/answer_queue.h"
#include "runtime/scheduler/local_workers.h"
#include "runtime/scheduler/report_publisher.h"
#include "runtime/scheduler/taken_places.h"

namespace holdfast::runtime {

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
  [[nodiscard]] std::string status() const;
  void tell_statuses();
  void accept(std::shared_ptr<io::Connection> connection, wire::PeerKind kind);
  void refused(const std::string& peer, const std::string& why);
  void received(controller::Link link, wire::Message message);
  void closed(controller::Link link);
  void written(const Result<std::size_t>& stores);
  void step(const controller::Event& event);
  void carry_out(const controller::Store& action);
  void carry_out(const controller::Send& action);
  void carry_out(const controller::Answer& action) { answers_.add(action); }
  void carry_out(const controller::Close& action);
  void carry_out(const controller::Probe& action);
  void carry_out(const controller::Note& action);
  void carry_out(const controller::End& action);
  void carry_out(const controller::Leave& action);
  void set_timer();
  void remember_local(controller::Link link, const wire::Register& who);
  void look_for_locals();
  void prove_dead(const LocalWorker& local, Instant until, Duration next);
  void watch_agent();
  void note_in_trace(const controller::Note& note);
  void keep_status();
  void stop_if_alone();
  void interrupted(int signal);
  void clean_up();

  io::Loop& loop_;
  Opened opened_;
  const config::Settings& settings_ = opened_.settings;
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
  ReportPublisher reports_;
  Connections links_;
  AnswerQueue answers_{loop_, links_};
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
  std::optional<Instant> kept_at_;  // When the status was written last,
  bool keeps_later_ = false;        // and whether it will be once more.
  bool under_tls_ = false;
  bool ended_ = false;
  bool leaves_ = false;  // Stops the loop once no link is left.
  std::optional<int> exit_code_;
};

}  // namespace holdfast::runtime
