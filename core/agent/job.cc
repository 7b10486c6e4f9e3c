#include "core/agent/job.h"

#include <array>

#include "base/assert.h"
#include "base/number.h"

namespace holdfast::agent {

namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLastPause = std::chrono::seconds(2);

template <class E>
constexpr std::size_t kEvent = event_index<Event, E>();

using S = State;
constexpr Transition<State> kTransitions[] = {
    {S::kRunning, kEvent<Received>, S::kDone, "JobEnded: all is well"},
    {S::kRunning, kEvent<Received>, S::kEnding,
     "JobEnded: the job has failed; or Refused; or the snapshot that an interrupt waits for"},
    {S::kRunning, kEvent<PauseOver>, S::kEnding, "the snapshot of an interrupt takes too long"},
    {S::kRunning, kEvent<Died>, S::kDone,
     "the scheduler has ended well; or it has heard of the job's end"},
    {S::kRunning, kEvent<Died>, S::kEnding, "too often, or twice by the same exception"},
    {S::kRunning, kEvent<Died>, S::kExited, "the last one; all workers had ended well"},
    {S::kRunning, kEvent<SpawnFailed>, S::kEnding},
    {S::kRunning, kEvent<SpawnFailed>, S::kExited, "of a spare; all workers had ended well"},
    {S::kRunning, kEvent<Interrupted>, S::kEnding},
    {S::kRunning, kEvent<GraceOver>, S::kEnding, "workers or scheduler have ended, the others not"},
    {S::kRunning, kEvent<GraceOver>, S::kExited},
    {S::kRunning, kEvent<Started>, S::kExited, "it has no places"},
    {S::kRunning, kEvent<LinkUp>, S::kExited, "the scheduler has heard that all have ended well"},
    {S::kRunning, kEvent<PauseOver>, S::kExited, "all had ended well; no scheduler is in reach"},
    {S::kRunning, kEvent<Interrupted>, S::kExited, "all had ended well; other hosts go on"},
    {S::kRunning, kEvent<Received>, S::kExited, "Places: it is drained, and nothing ran"},
    {S::kRunning, kEvent<OutOfReach>, S::kEnding, "another host runs the scheduler"},
    {S::kDone, kEvent<Received>, S::kEnding, "JobEnded: the job has failed; or Refused"},
    {S::kDone, kEvent<Died>, S::kEnding, "twice by the same exception, as is known late"},
    {S::kDone, kEvent<Died>, S::kExited, "the last one"},
    {S::kDone, kEvent<Received>, S::kExited, "JobEnded; nothing ran"},
    {S::kDone, kEvent<SpawnFailed>, S::kEnding},
    {S::kDone, kEvent<SpawnFailed>, S::kExited, "of a spare; nothing else ran"},
    {S::kDone, kEvent<Interrupted>, S::kEnding},
    {S::kDone, kEvent<GraceOver>, S::kEnding},
    {S::kDone, kEvent<GraceOver>, S::kExited},
    {S::kEnding, kEvent<Died>, S::kExited, "the last one"},
    {S::kEnding, kEvent<Received>, S::kExited, "JobEnded, or Refused; nothing ran"},
    {S::kEnding, kEvent<SpawnFailed>, S::kExited, "nothing else ran"},
    {S::kEnding, kEvent<Interrupted>, S::kExited},
    {S::kEnding, kEvent<GraceOver>, S::kExited},
    {S::kEnding, kEvent<PauseOver>, S::kExited, "no scheduler has said that it has heard of it"},
};

}  // namespace

std::span<const Transition<State>> transitions() {
  return kTransitions;
}

const char* name(State state) {
  constexpr std::array<const char*, kStates> kNames = {"running", "done", "ending", "exited"};
  return kNames[static_cast<std::size_t>(state)];
}

Job::Job(Options chosen) : options(std::move(chosen)), prng(options.seed) {
  if (options.runs_scheduler) {
    // If the agent continues a job, its first scheduler counts as a successor, which has a journal.
    places.push_back({.node_id = kSchedulerNode,
                      .role = Role::kScheduler,
                      .attempt = options.continues ? 1U : 0U});
  }
  for (const auto& node_id : options.workers) places.push_back({.node_id = node_id});
}

// Any event may lead to kExited, if it is the last that the agent waits for; the table lists the
// usual ones.
void Job::enter(State next) {
  HF_ASSERT(next == State::kExited || is_listed<State>(kTransitions, state, event, next));
  state = next;
}

void Job::send(wire::Message message) {
  if (link == LinkState::kUp) emit(Send{std::move(message)});
}

Process Job::new_process() {
  running.insert(next_process);
  return next_process++;
}

std::uint64_t Job::pause(Duration how_long) {
  emit(WantPause{next_pause, how_long});
  return next_pause++;
}

std::uint64_t Job::pause(std::int32_t times) {
  Duration how_long = kFirstPause;
  for (; times > 0 && how_long < kLastPause; --times) how_long *= 2;
  return pause(std::min(how_long, kLastPause));
}

Place* Job::place_of(Process process) {
  const auto found = std::find_if(places.begin(), places.end(),
                                  [&](const Place& p) { return p.process == process; });
  return found != places.end() ? &*found : nullptr;
}

bool Job::is_servers(const std::string& node_id) const {
  const auto number = whole_number(node_id);
  return number && *number >= options.world_size - options.servers;
}

bool Job::workers_done() const {
  if (waits_for_places() && state == State::kRunning) return false;
  const bool counts_servers = !is_local();
  return std::all_of(places.begin(), places.end(), [&](const Place& p) {
    return p.role != Role::kWorker || p.done || (!counts_servers && is_servers(p.node_id));
  });
}

}  // namespace holdfast::agent
