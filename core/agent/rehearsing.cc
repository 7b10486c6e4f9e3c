// What an agent does for its rehearsals: when one may begin, what ends it, and what is told of it.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "core/agent/machine.h"

namespace holdfast::agent {

namespace {

wire::RehearsalState skipped(const std::string& why, const std::string& node_id) {
  std::string words = printable(why);
  words.resize(std::min(words.size(), wire::kMaxSentenceBytes / 2));
  return {.verdict = wire::Verdict::kSkipped,
          .version = kNoVersion,
          .sentence = cat(words, "; see ", rehearsal_log(node_id))};
}

std::string how_it_ended(const Died& e) {
  const bool by_signal = e.ending.kind == wire::Ending::Kind::kSignalled;
  return cat(by_signal ? "it was killed by signal " : "it ended with exit code ", e.ending.code,
             e.error.empty() ? "" : cat(" (", e.error, ")"),
             e.verdict ? " and what it left is no verdict" : " and left no verdict");
}

}  // namespace

// Of the ranks that train here.
std::vector<std::string> Machine::rehearsed_places() const {
  std::vector<std::string> places;
  for (const auto& place : places_) {
    if (place.role == Role::kWorker) places.push_back(place.node_id);
  }
  return places;
}

bool Machine::is_at_a_place(Process process) const {
  return std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
    return place.role == Role::kWorker && place.process == process;
  });
}

// Spares go first: the job needs them sooner.
void Machine::maybe_rehearse() {
  if (state_ != State::kRunning || workers_leave_) return end_rehearsal();
  if (!options_.rehearsals.on || spares_.empty() || !owed_.empty()) return;
  const bool ready =
      std::all_of(spares_.begin(), spares_.end(), [](const Spare& s) { return s.is_ready; });
  const bool train = std::all_of(places_.begin(), places_.end(), [](const Place& p) {
    return p.role != Role::kWorker || (p.process != 0 && !p.done);
  });
  if (!ready || !train) return;
  const auto next = rehearsals_.next(rehearsed_places());
  if (!next) return;
  const Process process = next_process_++;
  const std::uint64_t attempt = rehearsals_.attempt();
  rehearsals_.begin(process, *next, pauses());
  running_.insert(process);
  actions_.push_back(Spawn{process, Role::kRehearsal, *next, attempt, prng_.next()});
}

void Machine::end_rehearsal() {
  const Process process = rehearsals_.under_way();
  if (rehearsals_.call_off()) actions_.push_back(Kill{process, false});
}

// A recovery has a better use for the processors, and for the state that is looked at.
void Machine::call_off_rehearsals() {
  rehearsals_.hear_of_fault();
  end_rehearsal();
}

// Its death is no fault of the job.
void Machine::rehearsal_died(const Died& e) {
  if (e.ending.kind == wire::Ending::Kind::kUnknown) return;  // A second Died tells how.
  running_.erase(e.process);
  if (!rehearsals_.end()) return;
  if (e.verdict && e.verdict->starts_with(wire::kAgain) && rehearsals_.go_on()) return;
  auto verdict = e.verdict ? verdict_in(*e.verdict) : std::nullopt;
  if (!verdict) verdict = skipped(how_it_ended(e), rehearsals_.node_id());
  conclude_rehearsal(*std::move(verdict));
}

void Machine::rehearsal_not_started(const SpawnFailed& e) {
  if (!rehearsals_.end()) return;
  conclude_rehearsal(skipped(cat("it could not be started: ", e.why), rehearsals_.node_id()));
}

void Machine::rehearsal_takes_too_long() {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(options_.rehearsals.at_most).count();
  actions_.push_back(Kill{rehearsals_.under_way(), false});
  conclude_rehearsal(
      skipped(cat("it had not ended after ", seconds, " s and was killed"), rehearsals_.node_id()));
}

void Machine::conclude_rehearsal(wire::RehearsalState verdict) {
  auto [told, ends_job] = rehearsals_.conclude(std::move(verdict), rehearsed_places(), pauses());
  spares_told_ = false;
  if (!told) return;
  if (told->kind == wire::Reason::Kind::kRehearsalSkipped) {
    actions_.push_back(Log{*std::move(told)});
  } else if (ends_job) {
    fail({1, *std::move(told), ""});
  } else {
    actions_.push_back(Say{*std::move(told)});
  }
}

void Machine::receive(const wire::Waiting& m) {
  if (m.reason.kind == wire::Reason::Kind::kHostLost) call_off_rehearsals();
  actions_.push_back(Say{m.reason});
}

}  // namespace holdfast::agent
