// Every message between the processes of a job, one struct each, declared once. wire/codec.h writes
// and reads them as protobuf; wire/*.proto say the same for other languages.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/whereabouts.h"
#include "wire/formation.h"
#include "wire/peer.h"
#include "wire/reason.h"

namespace holdfast::wire {

inline constexpr std::uint32_t kProtocol = 19;  // Raised when an older peer could misunderstand us.

// worker → scheduler, first on every connection; again after every reconnection.
struct Register {
  std::string job;              // Names the job; a process of another job is refused.
  std::string node_id;          // Stable over restarts of the same place in the job.
  Incarnation incarnation = 0;  // New at every process start.
  std::uint64_t attempt = 0;  // Counts the processes that an agent gave this place to; 0: no agent.
  std::string host;
  std::int64_t pid = 0;
  std::uint32_t protocol = kProtocol;
  std::string memory;    // Names the memory it can share, with workers that give the same name.
  std::string endpoint;  // Where workers on other hosts reach it; empty: they can not.
  std::string domain;    // Workers with the same name here fail together; empty: as by `memory`.
  bool serves = false;   // It was started as a parameter server.
  bool operator==(const Register&) const = default;
};

// scheduler → worker: this rank's part of the formation. It is state, not an event: the newest one
// says all, so a lost one costs nothing. Sent when all ranks are known, on every new connection and
// after every change that concerns this rank.
struct Assignment {
  Rank rank = kNoRank;
  std::int32_t world_size = 0;
  std::uint64_t run_id = 0;  // Tells this run's files from those of an earlier one.
  Generation generation = 0;
  // kStopping: leave the collectives, finish a started update, park, and report.
  // kRepairing: carry out `order` and answer Repaired, unless it is kKeep.
  // kRunning: form the group and go on after `version`.
  Stage stage = Stage::kStopping;
  Version version = 0;
  Order order;
  Rank ended = kNoRank;         // A rank whose training has ended, so it never joins; else kNoRank.
  Reason cause;                 // Why the generation is formed.
  std::uint64_t addresses = 0;  // The Addresses::name in use. 0: all ranks share one memory.
  std::uint64_t pauses = 0;     // As in Formation. While it is odd, come to no commit barrier.
  bool operator==(const Assignment&) const = default;
};

// Where workers of one host listen.
struct HostAddress {
  std::uint32_t host = 0;    // A number, as in PeerPlace (core/address_book.h).
  std::uint32_t domain = 0;  // A number, too.
  std::string address;       // Register::endpoint without its port.
  bool operator==(const HostAddress&) const = default;
};

// scheduler → agent: the address book, which says where all ranks are. Sent before the first
// Assignment that names it. The agent writes it to a file for the workers of its host. A worker
// gets it only when it asks.
struct Addresses {
  std::uint64_t name = 0;  // Names the address book as it is with this message.
  std::uint64_t base = 0;  // Names the address book that this changes; 0: this is all of it.
  std::vector<HostAddress> addresses;
  std::vector<std::uint32_t> ranks;  // The ranks that change; empty: all ranks, in order.
  std::vector<std::uint32_t> at;     // For each of these: the index of its HostAddress,
  std::vector<std::uint32_t> ports;  // and its port; 0: the address has none.
  bool operator==(const Addresses&) const = default;
};
// worker or agent → scheduler: send me the whole address book. My agent has not written the one
// that I need (it did not get it, or is stopped), or what I got changes one that I do not have.
struct AskAddresses {
  bool operator==(const AskAddresses&) const = default;
};

// scheduler → worker or agent: the job will never admit you, for this reason.
struct Refused {
  std::string sentence;  // Only to or from a process that speaks a former protocol.
  Reason reason;
  bool operator==(const Refused&) const = default;
};

// scheduler → worker: the job does not admit you yet, for this reason (too few processes so far;
// the old incarnation's lease still runs). Sent once per reason; the worker stays connected and
// waits.
// scheduler → agent, for its user: a host is lost (kHostLost), a rank holds up all (kHoldsUp) or
// has lost pages (kPagesLost); or the Remark of a rank.
struct Waiting {
  Reason reason;
  // 0; or it is so many-th of the job's remarks, which are sent in order. An agent that has had it
  // already is silent about it.
  std::uint64_t remark = 0;
  bool operator==(const Waiting&) const = default;
};

// One place of a job as its agent sees it.
struct PlaceState {
  std::string node_id;
  Incarnation incarnation = 0;  // The newest process to which the place was given.
  std::uint64_t attempt = 0;
  bool alive = false;
  Ending ending;                  // How the last process that died here ended.
  std::uint64_t detected_ns = 0;  // When the agent knew of the last death, by its host's clock.
  bool operator==(const PlaceState&) const = default;
};

// A spare, as its agent holds it.
struct SpareState {
  std::string node_id;  // The only place that it may take; empty: any.
  bool is_ready = false;
  bool operator==(const SpareState&) const = default;
};

// What came of the newest rehearsal of a rank (core/agent/rehearsals.h).
enum class Verdict : std::uint8_t {
  kEqual,
  kDiffers,
  kUncertain,  // Two rehearsals of the same step, each in a new process, differ from each other.
  kSkipped,    // The step was not made to its end.
  kWrong,      // kDiffers, but later steps of the rank were equal.
};
[[nodiscard]] constexpr const char* name(Verdict verdict) {
  constexpr const char* kNames[] = {"equal", "differs", "uncertain", "skipped", "wrong"};
  return kNames[static_cast<std::size_t>(verdict)];
}
// In place of a verdict: another process is to rehearse the same step.
inline constexpr std::string_view kAgain = "again";
[[nodiscard]] constexpr bool is_known(Verdict verdict) {
  return verdict <= Verdict::kWrong;
}
inline constexpr std::size_t kMaxSentenceBytes = 2000;
// As much of a text as a message takes.
[[nodiscard]] inline std::string sentence(std::string text) {
  text.resize(std::min(text.size(), kMaxSentenceBytes));
  return text;
}
struct RehearsalState {
  std::string node_id;
  Verdict verdict = Verdict::kEqual;
  Version version = 0;   // That was made; kNoVersion: none.
  std::string sentence;  // What differs first, or why it is uncertain or was skipped.
  bool operator==(const RehearsalState&) const = default;
};

// A rank that stands still: for longer than a few of its steps, its Whereabouts have not changed.
// It may wait for others, or hold them up.
struct StandingState {
  std::string node_id;
  Generation generation = 0;  // This and the next three: as in Whereabouts.
  std::uint64_t operations = 0;
  Version version = 0;
  Doing doing = Doing::kStarting;
  bool has_stepped = false;  // This process has made a step.
  std::uint32_t for_ms = 0;  // When it was first told.
  std::string report = {};   // What its process does (Inspect); empty: not known yet.
  bool exchanges = false;    // It is in an operation of some ranks only.
  bool operator==(const StandingState&) const = default;
};

// agent → scheduler: all its places, on connection and after every change. It is state, not an
// event: the newest message says all, so a lost one costs nothing.
struct AgentState {
  std::string job;
  std::string agent_id;
  std::string host;
  std::vector<PlaceState> places;
  std::uint32_t protocol = kProtocol;
  std::uint32_t takes = 0;              // How many more places it would take from lost hosts.
  std::vector<SpareState> spares = {};  // For status; the scheduler decides nothing by them,
  std::vector<RehearsalState> rehearsals = {};  // nor by these.
  std::vector<StandingState> standing = {};     // Whoever stands still for long.
  std::uint64_t remarks = 0;  // How many of the job's remarks its user has been told.
  bool operator==(const AgentState&) const = default;
};

// scheduler → agent: end this process, because its lease has run out.
struct Evict {
  std::string node_id;
  Incarnation incarnation = 0;
  bool is_hung = false;  // Because all others have waited for it for too long.
  bool operator==(const Evict&) const = default;
};

// scheduler → agent: find out what this process does, because others wait for it, and tell it as
// StandingState::report.
struct Inspect {
  std::string node_id;
  Incarnation incarnation = 0;
  bool operator==(const Inspect&) const = default;
};

// scheduler → agent: the places that are yours, and those that you ask for and may get one day. It
// is state, not an event, and sent whenever AgentState differs from it. Start a process for each of
// these places that has none; end the processes of all other places.
struct Places {
  std::vector<std::string> node_ids;
  bool drains = false;  // Take no more places, and end once you have none.
  bool operator==(const Places&) const = default;
};

// observer → scheduler, at a user's request: move the places of a host to other hosts.
struct Move {
  std::string from;     // The name of the host.
  std::string to;       // The name of another one; empty: any that would take them.
  bool drains = false;  // As in Places.
  bool operator==(const Move&) const = default;
};
// scheduler → observer: Reason::Kind::kMoves, or why the places do not move.
struct Moved {
  Reason reason;
  bool operator==(const Moved&) const = default;
};

// What a drill does to a rank's process, in its training thread (docs/drills.md).
enum class DrillKind : std::uint8_t { kKill, kStop, kHang, kSpin, kSlow, kPage, kFlip, kCut };
[[nodiscard]] constexpr bool is_known(DrillKind kind) {
  return kind <= DrillKind::kCut;
}

// observer → scheduler, at a user's request: have this happen to the rank, or to the host.
// scheduler → worker, agent: have it happen to you. It comes once, but for kSlow.
struct Drill {
  Rank rank = kNoRank;
  DrillKind kind = DrillKind::kKill;
  Doing phase = Doing::kComputing;  // When the rank begins with this,
  Version at_step = 0;              // in this step or a later one.
  // kHang, kSpin: for so long; 0: for ever. kSlow: so long in each step from then on.
  std::uint32_t for_ms = 0;
  std::uint64_t seed = 0;  // kPage, kFlip: chooses the page or the bit.
  // Not empty: the name of a host, or the id of its agent. Then kKill and kStop mean all processes
  // there, the agent too, at once, and of the members above only `kind` counts.
  std::string host = {};
  bool operator==(const Drill&) const = default;
};
// scheduler → observer: Reason::Kind::kDrill, or why there is no drill.
struct Drilled {
  Reason reason;
  bool operator==(const Drilled&) const = default;
};

// observer → scheduler, at a user's request: have the job make no further step, or go on.
// agent → scheduler: go on, because this host's workers are to end.
// worker → scheduler: this rank stands still by order.
// scheduler → agent: how it is now; after each change, and on a new connection if it is paused.
struct Pause {
  bool on = false;
  std::uint64_t pauses = 0;  // From a worker: Assignment::pauses, by which it stands still;
  Version version = 0;       // and the newest step that it has made.
  bool operator==(const Pause&) const = default;
};
// scheduler → observer: kPaused, kPausing or kUnpaused; or why the job has ended.
struct Paused {
  Reason reason;
  bool operator==(const Paused&) const = default;
};

// A file of a snapshot: what one rank has to give.
struct SnapshotFile {
  Rank rank = kNoRank;
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;  // Of all its bytes.
  bool operator==(const SnapshotFile&) const = default;
};
enum class SnapshotWord : std::uint8_t {
  kTake,     // scheduler → worker: once `version` is committed, copy what you have to give.
  kTaken,    // worker → scheduler: it is copied.
  kWrite,    // scheduler → agent: write what the ranks of `files` have copied to the disk.
  kWritten,  // agent → scheduler: `files` are on the disk.
  kName,     // scheduler → agent: `files` are all. Make the folder a snapshot, and remove `old`.
  kNamed,    // agent → scheduler: the snapshot is whole.
  kMissed,   // worker → scheduler, in place of kTaken: it has come too late.
  kFailed,   // worker or agent → scheduler, in place of kTaken, kWritten or kNamed: `why`.
  kUnreadable,  // worker → scheduler, in place of Repaired: `why` it can not load the snapshot.
  kAsk,  // agent or observer → scheduler: make one now; answered by kNamed or kFailed. `version`:
         // of this step or a later one.
  kStop,  // observer → scheduler: the same, and then end the job. scheduler → agent: end now.
};
[[nodiscard]] constexpr bool is_known(SnapshotWord word) {
  return word <= SnapshotWord::kStop;
}
// How a snapshot is made: core/controller/snapshots.h.
struct Snapshot {
  SnapshotWord word = SnapshotWord::kTake;
  Generation generation = 0;  // In which the round was begun; for kUnreadable: that is repaired.
  Version version = 0;
  std::string name;  // Of its folder; not for kTake, kTaken, kMissed.
  std::vector<SnapshotFile> files;
  std::vector<std::string> old;
  std::string why;
  bool operator==(const Snapshot&) const = default;
};

// The private part of another rank's state, held on this host in case that rank's host is lost.
struct HeldCopy {
  Rank ward = kNoRank;  // The rank whose private part it is.
  Version version = kNoVersion;
  Version staged = kNoVersion;  // As in Report.
  bool operator==(const HeldCopy&) const = default;
};

// worker → scheduler: this rank is parked for this generation, and its arena holds this.
struct Report {
  Generation generation = 0;
  Version version = kNoVersion;  // kNoVersion: nothing yet (a fresh arena).
  Version staged = kNoVersion;   // version; or version + 1, if that step is staged.
  bool private_is_own = false;   // No other rank has the same private part.
  std::vector<HeldCopy> held;    // What it holds for other ranks.
  // A memory error has taken a part of what all ranks hold alike,
  bool has_lost_shared = false;
  bool has_lost_private = false;  // or of its private part.
  bool operator==(const Report&) const = default;
};

// worker → scheduler: the Order of this generation is carried out.
struct Repaired {
  Generation generation = 0;
  std::uint64_t bytes = 0;   // How many bytes were copied for it.
  bool is_of_pages = false;  // Only pages that were lost.
  bool operator==(const Repaired&) const = default;
};

// worker → scheduler: a step was committed. Sent at once after the first step of a generation,
// later now and then. It is for status and reports, and it ends a recovery. It decides nothing
// else.
struct Progress {
  Generation generation = 0;
  Version version = 0;
  double loss = 0;
  // What the rank's own part of a step took on average since the last Progress, without what it
  // waited for others; and what of it lay between two steps. Microseconds; 0: not known.
  std::uint32_t own_us = 0;
  std::uint32_t between_us = 0;
  std::string holds = {};  // What a parameter server holds, as JSON for status; empty: as before.
  bool operator==(const Progress&) const = default;
};

// scheduler → agent: the job's progress, and that a recovery is over (restarts are counted anew).
struct JobProgress {
  Generation generation = 0;
  Version version = 0;  // The newest that all ranks are known to have reached.
  double loss = 0;
  std::uint64_t recoveries = 0;  // So far, as on record.
  bool operator==(const JobProgress&) const = default;
};

// worker → scheduler: my group of this generation has ended, and for a while nobody has told me
// why. No process need be dead: a connection between two hosts may have failed. Or this rank has
// lost memory that the step under way needs, so that step is void.
struct GroupLost {
  Generation generation = 0;
  std::uint32_t pages = 0;  // How many pages it has lost; 0: it has lost its group.
  bool operator==(const GroupLost&) const = default;
};

// worker → scheduler: this rank's training has ended in good order, at this version.
struct Finished {
  Generation generation = 0;
  Version version = 0;
  bool operator==(const Finished&) const = default;
};

// scheduler → worker: `Finished` is on record; you may end.
struct Farewell {
  bool operator==(const Farewell&) const = default;
};

// worker → scheduler: the job can not go on, for this reason: the user's error, or one that no
// recovery can repair.
struct Failed {
  Reason reason;
  bool operator==(const Failed&) const = default;
};

// worker → scheduler: what users of the job should know. It is told to all of them, and decides
// nothing.
struct Remark {
  Reason reason;
  bool operator==(const Remark&) const = default;
};

// scheduler → all: the job is over.
struct JobEnded {
  bool success = false;
  Reason reason;
  bool operator==(const JobEnded&) const = default;
};

// anyone → scheduler, and its answer.
struct StatusQuery {
  bool operator==(const StatusQuery&) const = default;
};
struct StatusReply {
  std::string json;
  bool operator==(const StatusReply&) const = default;
};

// In both directions, when nothing else was sent for a while.
struct Heartbeat {
  bool operator==(const Heartbeat&) const = default;
};

// ---- The job's key-values: docs/protocol/recovery.md, P36. Any process of the job asks, also one
// without a rank, on a connection of its own. The scheduler refuses what is over these bounds.

inline constexpr std::size_t kMaxKeyBytes = 256;
inline constexpr std::size_t kMaxValueBytes = (std::size_t{16} << 20) - 1024;  // Fits into a frame.
inline constexpr std::size_t kMaxKeys = 16;                                    // Of a Get.

// The scheduler puts this key, with an empty value, once a rank was given to another process.
inline constexpr const char* kSucceeded = "holdfast.succeeded";

using KeyVersion = std::uint64_t;  // How often a key was set; 0: it has no value.
inline constexpr KeyVersion kAnyKeyVersion = ~KeyVersion{0};

struct KeyValue {
  std::string key;
  std::string value;
  KeyVersion version = 1;
  bool operator==(const KeyValue&) const = default;
};

// The last Put of one writer that has changed a value. Kept so that the same Put is not done twice.
struct Writer {
  std::uint64_t writer = 0;
  std::uint64_t id = 0;    // Put::id.
  KeyVersion version = 0;  // The key's version that this Put has made.
  bool operator==(const Writer&) const = default;
};

// One change of the scheduler's journal. All of it becomes durable, or nothing.
struct Changes {
  // Replaces the stored formation; nullopt: that stays. If its roster is empty, the stored roster
  // stays, except for `seats`.
  std::optional<Formation> formation;
  std::map<Rank, Seat> seats;
  std::vector<KeyValue> kept;   // Added; or replacing those with the same key.
  std::vector<Writer> writers;  // Added; or replacing those with the same Writer::writer.
  std::map<std::uint64_t, Remarked> remarks = {};  // Added, by number.
  bool operator==(const Changes&) const = default;
};
// What a scheduler that was restarted reads from its journal.
struct Memory {
  std::optional<Formation> formation;  // Nothing: none was stored yet.
  std::vector<KeyValue> kept;          // In no order.
  std::vector<Writer> writers;
  std::vector<Remarked> remarks;  // All from number 1 on, kMaxRemarks at most.
};

// any process of the job → scheduler: keep this, if the key is at the expected version.
struct Put {
  std::uint64_t id = 0;  // Chosen by the sender; the answer has the same.
  std::string key;
  std::string value;
  KeyVersion expected = 0;  // kAnyKeyVersion: whichever it is at.
  // Names the sender. If it sends the Put again, with the same id, it is done only once. Its ids
  // grow, and it has one such Put open at a time. 0: doing it twice would change nothing.
  std::uint64_t writer = 0;
  bool operator==(const Put&) const = default;
};

// scheduler → the sender of Put.
struct Kept {
  std::uint64_t id = 0;
  Reason reason;           // kNone; else why there is no room for it.
  bool is_set = false;     // The key was at the expected version.
  KeyVersion version = 0;  // The key's version now: that of this value, if it was set.
  bool operator==(const Kept&) const = default;
};

// any process of the job → scheduler: send the value of the first of these keys that has a version
// newer than `newer_than`, as soon as there is one. A later Get with the same id replaces this one.
struct Get {
  std::uint64_t id = 0;
  std::vector<std::string> keys;
  bool at_once = false;  // Answer at once, also if none has a newer version.
  KeyVersion newer_than = 0;
  bool operator==(const Get&) const = default;
};

// scheduler → the sender of Get.
struct Got {
  std::uint64_t id = 0;
  bool found = false;  // Always true unless Get::at_once.
  std::string key;
  std::string value;
  KeyVersion version = 0;
  bool operator==(const Got&) const = default;
};

// The order is the kind number on the wire (1-based). Register and Refused keep theirs and the
// numbers of their members for ever: by them a process of another protocol is refused by name.
using Message =
    std::variant<Register, Assignment, Refused, Waiting, AgentState, Evict, Report, Repaired,
                 Progress, JobProgress, Finished, Farewell, Failed, JobEnded, StatusQuery,
                 StatusReply, Heartbeat, Put, Kept, Get, Got, GroupLost, Places, Move, Moved,
                 Addresses, AskAddresses, Inspect, Remark, Drill, Drilled, Snapshot, Pause, Paused>;
inline constexpr std::array<std::string_view, std::variant_size_v<Message>> kMessageNames = {
    "Register", "Assignment", "Refused",      "Waiting",     "AgentState", "Evict",
    "Report",   "Repaired",   "Progress",     "JobProgress", "Finished",   "Farewell",
    "Failed",   "JobEnded",   "StatusQuery",  "StatusReply", "Heartbeat",  "Put",
    "Kept",     "Get",        "Got",          "GroupLost",   "Places",     "Move",
    "Moved",    "Addresses",  "AskAddresses", "Inspect",     "Remark",     "Drill",
    "Drilled",  "Snapshot",   "Pause",        "Paused"};

}  // namespace holdfast::wire
