#include "runtime/scheduler/recovery_report.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using Kind = controller::Note::Kind;

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

// Of the wall clock, in UTC, as ISO 8601 has it.
std::string in_words(std::int64_t unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[40];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + length, sizeof text - length, ".%03dZ", static_cast<int>(unix_ms % 1000));
  return text;
}

nlohmann::ordered_json rank_or_null(Rank rank) {
  return rank == kNoRank ? nlohmann::ordered_json() : nlohmann::ordered_json(rank);
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

std::string to_json(const RecoveryReport& report) {
  const nlohmann::ordered_json json = {
      {"recovery", report.number},
      {"generation", report.generation},
      {"cause", wording::in_words(report.cause)},
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
      {"at", in_words(report.unix_ms)},
      {"seen_by", wording::seen_by(report.cause)},
      {"successors", first_of(report, report.successors)},
      {"rebuilt", first_of(report, report.rebuilt)},
      {"left_out", left_out(report.successors) + left_out(report.rebuilt)}};
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
  return cat("recovery ", report.number, ": ", wording::in_words(report.cause), "; ", outcome,
             phases);
}

bool lacks_how(const RecoveryReport& report) {
  return report.cause.kind == wire::Reason::Kind::kRankLost &&
         report.cause.ending.kind == wire::Ending::Kind::kUnknown;
}

bool complete(RecoveryReport& report, const controller::Note& how) {
  const bool same = report.cause.rank == how.reason.rank && report.cause.pid == how.reason.pid;
  if (!lacks_how(report) || !same) return false;
  report.cause = how.reason;
  return true;
}

void RecoveryLog::begin(Instant now, const controller::Note& note) {
  const Instant told{static_cast<Instant::rep>(note.detected_ns)};
  const bool believable = note.detected_ns != 0 && told <= now && now - told < kBelievable;
  current_ = RecoveryReport{.number = ++number_,
                            .generation = note.generation,
                            .cause = note.reason,
                            .version = note.version,
                            .detected = believable ? told : now};
}

std::optional<RecoveryReport> RecoveryLog::note(Instant now, const controller::Note& note) {
  std::optional<RecoveryReport> finished;
  switch (note.kind) {
    case Kind::kFault:
      if (current_ && current_->resume) finished = finish();
      if (!current_) begin(now, note);
      if (std::find(current_->ranks.begin(), current_->ranks.end(), note.rank) ==
          current_->ranks.end()) {
        current_->ranks.push_back(note.rank);
      }
      break;
    case Kind::kStop:
      if (note.generation <= 1) break;  // The job's start is no recovery.
      if (current_ && current_->resume) finished = finish();
      if (!current_) begin(now, note);
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
      if (current_->cause.kind == wire::Reason::Kind::kMoves) current_->cause = note.reason;
      break;
    case Kind::kRecovered:
      if (!current_ || !current_->resume) break;
      current_->first_step = now;
      finished = finish();
      break;
    case Kind::kRefused:
    case Kind::kTaken:
    case Kind::kHeldUp:
    case Kind::kRemark:
      break;
  }
  return finished;
}

std::optional<RecoveryReport> RecoveryLog::finish() {
  return std::exchange(current_, std::nullopt);
}

}  // namespace holdfast::runtime
