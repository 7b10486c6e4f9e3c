// What may happen to an agent, and what it must do then.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/whereabouts.h"
#include "core/agent/rehearsals.h"
#include "wire/messages.h"

namespace holdfast::agent {

// How often the shell looks for stopped processes (SIGSTOP).
inline constexpr Duration kLookEvery = std::chrono::milliseconds(150);

// What may happen.
struct Started {};
struct Died {  // A process has died. Its lifeline may tell so before its exit code is known.
  Process process = 0;
  wire::Ending ending;  // kUnknown: it is dying; a second Died says how it ended.
  std::uint64_t detected_ns = 0;
  std::string error = {};        // The exception that ended it, in its own words; empty: none did.
  Version version = kNoVersion;  // The last step that it has made; kNoVersion: unknown.
  // Set if the process had heard of the job's end; true: the job has ended well.
  std::optional<bool> job_ended = {};
  // `error` says what the program has to change, so every later process would end with it.
  bool is_final = false;
  std::optional<std::string> verdict = {};  // What a rehearsal has left as its verdict: any bytes.
};
struct SpawnFailed {
  Process process = 0;
  std::string why;
};
struct PauseOver {
  std::uint64_t pause = 0;
};
struct Looked {  // Every kLookEvery.
  // Running processes that a signal has stopped; not those that a debugger has stopped.
  std::set<Process> stopped;
  bool on_time = true;  // No look was missed, so the agent itself was not stopped.
  std::map<Process, Whereabouts> whereabouts = {};  // Of the workers.
};
struct Inspected {  // Answers Inspect.
  Process process = 0;
  std::string report;  // A sentence or two, at most wire::kMaxSentenceBytes.
};
struct SpareReady {  // The spare waits, and could take a place at once.
  Process process = 0;
};
struct LinkUp {  // Connected to the scheduler.
  // Agents of other hosts may be connected, too. Then each agent sends heartbeats.
  bool is_far = false;
};
struct LinkDown {};
struct Received {
  wire::Message message;
};
struct Interrupted {  // The user, or whatever started the agent, wants the job to end.
  std::int32_t signal = 0;
};
struct GraceOver {};   // The grace period of processes that were asked to end is over.
struct SnapshotDone {  // Answers DoSnapshot.
  wire::Snapshot answer;
};
struct OutOfReach {  // No scheduler has been in reach for HOLDFAST_SCHEDULER_TIMEOUT.
  std::string why;
};
using Event =
    std::variant<Started, Died, SpawnFailed, PauseOver, Looked, LinkUp, LinkDown, Received,
                 Interrupted, GraceOver, OutOfReach, SpareReady, Inspected, SnapshotDone>;
inline constexpr const char* kEventNames[] = {
    "started",      "died",        "spawn failed", "pause over",   "looked",
    "link up",      "link down",   "received",     "interrupted",  "grace over",
    "out of reach", "spare ready", "inspected",    "snapshot done"};
static_assert(std::size(kEventNames) == std::variant_size_v<Event>);

// What must be done.
enum class Role : std::uint8_t { kScheduler, kWorker, kSpare, kRehearsal };
// How the last process of a place ended. kUnknown: not known, or there was none.
struct Predecessor {
  wire::Ending ending;
  std::string error;  // The exception that ended it; empty: none did.
  bool there_was = false;
};
struct Spawn {
  Process process = 0;
  Role role = Role::kWorker;
  std::string node_id;  // Empty for a spare of any place.
  std::uint64_t attempt = 0;
  Incarnation incarnation = 0;
  Predecessor predecessor = {};
  bool takes_over = false;  // The place was another host's at first.
  bool prepares = false;    // A spare for places whose state is not on this host yet.
  bool serves = false;      // The place is a parameter server's.
};
struct Promote {  // This waiting spare becomes `node_id`.
  Process process = 0;
  std::string node_id;
  std::uint64_t attempt = 0;
  Predecessor predecessor = {};
};
struct Send {
  wire::Message message;
};
struct Kill {
  Process process = 0;
  bool gently = false;  // true: SIGTERM; after GraceOver the machine asks for SIGKILL.
};
// A drill: the shell sends SIGKILL (or, if `stops`, SIGSTOP) to all processes of this host and then
// to itself, before it looks at anything else.
struct EndHost {
  bool stops = false;
};
struct WantGrace {};  // Deliver GraceOver once, after the shell's grace period.
struct WantPause {    // Deliver PauseOver once, `how_long` later.
  std::uint64_t pause = 0;
  Duration how_long{};
};
struct LeaveAddresses {  // Leave this book for the workers of this host, in place of the last.
  wire::Addresses addresses;
};
struct Inspect {  // Find out what this process does, without its help, and answer with Inspected.
  Process process = 0;
  std::string node_id;  // Its place.
};
// Write files of a snapshot to the disk, or name it, and answer with SnapshotDone. This may take
// long, and nothing waits for it.
struct DoSnapshot {
  wire::Snapshot order;  // kWrite or kName
};
struct Say {
  wire::Reason reason;
};
struct Log {  // Write it only into the log that the reason names.
  wire::Reason reason;
};
// No process of this agent runs, but other hosts have yet to hear of that. The agent stays for
// `at_most`.
struct Stay {
  std::int32_t code = 0;  // As in Exit.
  wire::Reason reason;
  Duration at_most{};
};
struct Exit {  // End the agent, once its messages are sent. No process of it runs.
  std::int32_t code = 0;
  wire::Reason reason;      // For a failure: the first that was not recovered from.
  std::string failed_node;  // The node whose log tells more; may be empty.
  bool drained = false;     // The job goes on without this agent.
  // No snapshot was made for this end. What the processes have left in memory may be worth one.
  bool may_be_unsaved = false;
};
using Action = std::variant<Spawn, Promote, Send, Kill, WantGrace, WantPause, Say, Exit,
                            LeaveAddresses, Stay, Log, Inspect, EndHost, DoSnapshot>;
using Actions = std::vector<Action>;

}  // namespace holdfast::agent
