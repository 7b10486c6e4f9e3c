#include "core/agent/rehearsal_runner.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

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

// The ranks that train here.
std::vector<std::string> RehearsalRunner::places() const {
  std::vector<std::string> node_ids;
  for (const auto& place : job_.places) {
    if (place.role == Role::kWorker) node_ids.push_back(place.node_id);
  }
  return node_ids;
}

// Spares go first: the job needs them sooner.
void RehearsalRunner::maybe_begin() {
  if (job_.state != State::kRunning || shutdown_.workers_leave()) return end();
  const bool train = std::all_of(job_.places.begin(), job_.places.end(), [](const Place& p) {
    return p.role != Role::kWorker || (p.process != 0 && !p.done);
  });
  if (!job_.options.rehearsals.on || !spares_.are_all_ready() || !train) return;
  const auto next = rehearsals_.next(places());
  if (!next) return;
  const Process process = job_.new_process();
  const std::uint64_t attempt = rehearsals_.attempt();
  rehearsals_.begin(process, *next, pauses());
  job_.emit(Spawn{process, Role::kRehearsal, *next, attempt, job_.prng.next()});
}

void RehearsalRunner::end() {
  const Process process = rehearsals_.under_way();
  if (rehearsals_.call_off()) job_.kill(process);
}

void RehearsalRunner::call_off() {
  rehearsals_.hear_of_fault();
  end();
}

void RehearsalRunner::hear_of_step(Generation generation) {
  if (rehearsals_.hear_of_step(generation)) end();
}

// Its death is no fault of the job.
void RehearsalRunner::died(const Died& e) {
  if (e.ending.kind == wire::Ending::Kind::kUnknown) return;  // A second Died tells how.
  job_.running.erase(e.process);
  if (!rehearsals_.end()) return;
  if (e.verdict && e.verdict->starts_with(wire::kAgain) && rehearsals_.go_on()) return;
  auto verdict = e.verdict ? verdict_in(*e.verdict) : std::nullopt;
  if (!verdict) verdict = skipped(how_it_ended(e), rehearsals_.node_id());
  conclude(*std::move(verdict));
}

void RehearsalRunner::not_started(const SpawnFailed& e) {
  if (!rehearsals_.end()) return;
  conclude(skipped(cat("it could not be started: ", e.why), rehearsals_.node_id()));
}

void RehearsalRunner::pause_over(std::uint64_t pause) {
  if (!rehearsals_.over(pause)) return;
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(job_.options.rehearsals.at_most).count();
  job_.kill(rehearsals_.under_way());
  conclude(
      skipped(cat("it had not ended after ", seconds, " s and was killed"), rehearsals_.node_id()));
}

void RehearsalRunner::conclude(wire::RehearsalState verdict) {
  auto [told, ends_job] = rehearsals_.conclude(std::move(verdict), places(), pauses());
  job_.is_rest_told = false;
  if (!told) return;
  if (told->kind == wire::Reason::Kind::kRehearsalSkipped) {
    job_.emit(Log{*std::move(told)});
  } else if (ends_job) {
    shutdown_.fail({1, *std::move(told), ""});
  } else {
    job_.emit(Say{*std::move(told)});
  }
}

}  // namespace holdfast::agent
