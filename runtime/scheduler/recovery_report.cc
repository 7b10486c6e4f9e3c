#include "runtime/scheduler/recovery_report.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using Kind = controller::Note::Kind;
using wire::Ending;

// How old a detection may be. An agent on another host has another clock, so an older one, or one
// in the future, is not believed.
constexpr Duration kBelievable = std::chrono::seconds(60);

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

nlohmann::ordered_json since(const RecoveryReport& report, const std::optional<Instant>& at) {
  if (!at) return nullptr;
  return milliseconds(*at - report.detected);
}

std::string phase(const char* name, const RecoveryReport& report,
                  const std::optional<Instant>& at) {
  char text[64];
  if (!at) return {};
  std::snprintf(text, sizeof(text), ", %s %.1f", name, milliseconds(*at - report.detected));
  return text;
}

// Long lists help nobody.
constexpr std::size_t kMostListed = 64;

nlohmann::ordered_json rank_or_null(Rank rank) {
  return rank == kNoRank ? nlohmann::ordered_json() : nlohmann::ordered_json(rank);
}

bool lacks_how(const Fault& fault) {
  return fault.what.kind == wire::Reason::Kind::kRankLost &&
         fault.what.ending.kind == Ending::Kind::kUnknown;
}

// How long the processes of a job that is interrupted take to end, at most.
constexpr Duration kInterrupt = std::chrono::seconds(30);

// Whether this may be how a process ends when somebody interrupts the whole job.
bool is_of_interrupt(const Fault& fault) {
  const Ending& ending = fault.what.ending;
  const bool has_code =
      ending.kind == Ending::Kind::kSignalled || ending.kind == Ending::Kind::kExited;
  const std::int32_t signal =
      ending.kind == Ending::Kind::kExited ? ending.code - 128 : ending.code;
  return lacks_how(fault) || (fault.what.kind == wire::Reason::Kind::kRankLost && has_code &&
                              (signal == SIGINT || signal == SIGTERM));
}

// What a cause is, in a word for programs.
const char* word_for(const wire::Reason& cause) {
  switch (cause.kind) {
    case wire::Reason::Kind::kRankLost:
      break;
    case wire::Reason::Kind::kRankCameBack:
      return "taken";
    case wire::Reason::Kind::kGroupLost:
      return "group_lost";
    case wire::Reason::Kind::kPagesLost:
      return "pages_lost";
    case wire::Reason::Kind::kMoves:
      return "moved";
    case wire::Reason::Kind::kSnapshotUnreadable:
      return "snapshot";
    case wire::Reason::Kind::kSchedulerRestarted:
      return "scheduler";
    default:
      return "other";
  }
  switch (cause.ending.kind) {
    case Ending::Kind::kUnknown:
      return "died";
    case Ending::Kind::kExited:
      return "exited";
    case Ending::Kind::kSignalled:
      return "killed";
    case Ending::Kind::kWasStopped:
      return "stopped";
    case Ending::Kind::kWasSilent:
    case Ending::Kind::kNotHeard:
      return "silent";
    case Ending::Kind::kGone:
      return "gone";
    case Ending::Kind::kReplaced:
      return "taken";
    case Ending::Kind::kWasHung:
      return "hung";
  }
  return "other";
}

nlohmann::ordered_json in_json(const RecoveryReport& report, const Fault& fault) {
  const bool was_waited_for = fault.waited && fault.what.ending.kind == Ending::Kind::kWasHung;
  return {
      {"rank", rank_or_null(fault.what.rank)},
      {"pid",
       fault.what.pid == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(fault.what.pid)},
      {"cause", wording::in_words(fault.what)},
      {"seen_by", wording::seen_by(fault.what)},
      {"after_ms", since(report, fault.at)},
      {"waited_ms", was_waited_for ? nlohmann::ordered_json(milliseconds(*fault.waited))
                                   : nlohmann::ordered_json()},
      {"drill", fault.drill == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(fault.drill)}};
}

nlohmann::ordered_json in_json(const RecoveryReport& report, const Successor& successor) {
  return {{"rank", successor.rank},
          {"pid", successor.pid},
          {"host", successor.host},
          {"after_ms", since(report, successor.at)}};
}

nlohmann::ordered_json in_json(const RecoveryReport&, const controller::Rebuilt& rebuilt) {
  return {{"rank", rebuilt.rank},
          {"act", wire::name(rebuilt.act)},
          {"source", rank_or_null(rebuilt.source)},
          {"private_source", rank_or_null(rebuilt.private_source)},
          {"bytes", rebuilt.bytes},
          {"of_pages", rebuilt.is_of_pages}};
}

template <class Entry>
nlohmann::ordered_json first_of(const RecoveryReport& report, const std::vector<Entry>& list) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& entry : list) {
    if (json.size() < kMostListed) json.push_back(in_json(report, entry));
  }
  return json;
}

template <class Entry>
std::size_t left_out(const std::vector<Entry>& list) {
  return list.size() - std::min(list.size(), kMostListed);
}

}  // namespace

std::string iso_8601(std::int64_t unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[40];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03dZ", static_cast<int>(unix_ms % 1000));
  return text;
}

std::string to_json(const RecoveryReport& report) {
  const nlohmann::ordered_json json = {
      {"recovery", report.number},
      {"generation", report.generation},
      {"cause", wording::in_words(report.cause())},
      {"kind", word_for(report.cause())},
      {"ranks", report.ranks},
      {"version", report.version},
      {"steps_lost",
       report.plan ? nlohmann::ordered_json(report.steps_lost) : nlohmann::ordered_json()},
      {"detected_ns", report.detected.count()},
      {"stop_ms", since(report, report.stop)},
      {"plan_ms", since(report, report.plan)},
      {"repair_ms", since(report, report.repair)},
      {"resume_ms", since(report, report.resume)},
      {"first_step_ms", since(report, report.first_step)},
      {"over_ms", since(report, report.over)},
      {"at", iso_8601(report.unix_ms)},
      {"seen_by", wording::seen_by(report.cause())},
      {"faults", first_of(report, report.faults)},
      {"successors", first_of(report, report.successors)},
      {"rebuilt", first_of(report, report.rebuilt)},
      {"left_out",
       left_out(report.faults) + left_out(report.successors) + left_out(report.rebuilt)}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string in_words(const RecoveryReport& report) {
  std::string phases =
      cat(phase("stop", report, report.stop), phase("plan", report, report.plan),
          phase("repair", report, report.repair), phase("resume", report, report.resume),
          phase("first step", report, report.first_step));
  if (!phases.empty()) phases = cat(" (ms after the fault: ", phases.substr(2), ")");
  const std::string outcome =
      report.resume ? cat("training went on after step ", report.version, " as generation ",
                          report.generation, "; steps lost: ", report.steps_lost)
                    : "it was not completed";
  std::string faults;
  for (std::size_t i = 0; i < std::min(report.faults.size(), kMostListed); ++i) {
    faults += cat(i == 0 ? "" : "; then ", wording::in_words(report.faults[i].what));
  }
  return cat("recovery ", report.number, ": ", faults, "; ", outcome, phases);
}

bool lacks_how(const RecoveryReport& report) {
  return std::any_of(report.faults.begin(), report.faults.end(),
                     [](const Fault& fault) { return lacks_how(fault); });
}

bool complete(RecoveryReport& report, const controller::Note& how) {
  for (Fault& fault : report.faults) {
    const bool same = fault.what.rank == how.reason.rank && fault.what.pid == how.reason.pid;
    if (!lacks_how(fault) || !same) continue;
    fault.what = how.reason;
    return true;
  }
  return false;
}

void RecoveryLog::begin(Instant now, const controller::Note& note) {
  const Instant told{static_cast<Instant::rep>(note.detected_ns)};
  const bool believable = note.detected_ns != 0 && told <= now && now - told < kBelievable;
  const Instant detected = believable ? told : now;
  current_ = RecoveryReport{.number = ++number_,
                            .generation = note.generation,
                            .faults = {},
                            .version = note.version,
                            .detected = detected};
  add_fault(detected, note.reason);
}

void RecoveryLog::add_fault(Instant at, const wire::Reason& what) {
  Fault& fault = current_->faults.emplace_back(Fault{.what = what, .at = at});
  const auto held = held_up_.find(what.rank);
  if (held == held_up_.end() || held->second.pid != what.pid) return;
  fault.waited = at - held->second.since;
  held_up_.erase(held);
}

std::optional<RecoveryReport> RecoveryLog::note(Instant now, const controller::Note& note) {
  std::optional<RecoveryReport> finished;
  switch (note.kind) {
    case Kind::kFault:
      if (current_ && current_->resume) finished = take(now);
      current_ ? add_fault(now, note.reason) : begin(now, note);
      if (std::find(current_->ranks.begin(), current_->ranks.end(), note.rank) ==
          current_->ranks.end()) {
        current_->ranks.push_back(note.rank);
      }
      break;
    case Kind::kStop:
      if (note.generation <= 1) break;  // The job's start is no recovery.
      if (current_ && current_->resume) finished = take(now);
      if (!current_) {
        begin(now, note);
      } else if (note.reason.kind == wire::Reason::Kind::kGroupLost ||
                 note.reason.kind == wire::Reason::Kind::kPagesLost) {
        add_fault(now, note.reason);  // All others are told by a kFault, or are none.
      }
      current_->generation = note.generation;
      if (!current_->stop) current_->stop = now;
      break;
    case Kind::kPlan:
      if (!current_) break;
      current_->plan = now;
      current_->steps_lost += note.steps_lost;
      break;
    case Kind::kRepaired:
      if (!current_) break;
      current_->repair = now;
      current_->rebuilt = note.rebuilt;
      // Those that copied first: of a long list the beginning is told.
      std::stable_sort(current_->rebuilt.begin(), current_->rebuilt.end(),
                       [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
      break;
    case Kind::kTookOver:
      if (!current_) break;
      current_->successors.push_back({note.rank, note.reason.pid, note.reason.host, now});
      break;
    case Kind::kHow:
      if (current_) complete(*current_, note);
      break;
    case Kind::kResume:
      if (!current_) break;
      current_->resume = now;
      current_->version = note.version;
      // For a move, the reason of the resume says how the move ended.
      if (current_->cause().kind == wire::Reason::Kind::kMoves) {
        current_->faults.front().what = note.reason;
      }
      break;
    case Kind::kRecovered:
      if (!current_ || !current_->resume) break;
      current_->first_step = now;
      finished = take(now);
      break;
    case Kind::kHeldUp:
      held_up_[note.rank] = {note.reason.pid, now - std::chrono::milliseconds(note.reason.count)};
      break;
    case Kind::kRefused:
    case Kind::kTaken:
    case Kind::kRemark:
      break;
  }
  return finished;
}

std::optional<RecoveryReport> RecoveryLog::take(Instant now) {
  if (current_) current_->over = now;
  return std::exchange(current_, std::nullopt);
}

std::optional<RecoveryReport> RecoveryLog::finish(Instant now, const wire::Reason& end) {
  const bool is_interrupted = end.kind == wire::Reason::Kind::kInterrupted ||
                              end.kind == wire::Reason::Kind::kSchedulerInterrupted ||
                              end.kind == wire::Reason::Kind::kStopped;
  const auto is_recent = [&] { return now - current_->faults.front().at < kInterrupt; };
  if (is_interrupted && current_ && !current_->resume && is_recent() &&
      std::all_of(current_->faults.begin(), current_->faults.end(), is_of_interrupt)) {
    current_.reset();
    --number_;
  }
  return take(now);
}

}  // namespace holdfast::runtime
