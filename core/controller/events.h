// What may happen to a job, as its scheduler sees it, and what must be done then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "core/controller/key_values.h"
#include "wire/formation.h"
#include "wire/messages.h"

namespace holdfast::controller {

// What may happen.
struct Started {  // The key-values, writers and remarks in the journal.
  std::vector<wire::KeyValue> kept;
  std::vector<wire::Writer> writers;
  std::vector<wire::Remarked> remarks = {};
};
// A new connection, whose other end has proven that it is a process of this kind and of this job.
// Comes once for each connection, before anything that is received on it.
struct Connected {
  Link link = 0;
  wire::PeerKind kind = wire::PeerKind::kWorker;
};
struct Received {
  Link link = 0;
  wire::Message message;
  std::int64_t unix_ms = 0;  // The wall clock then, for remarks; 0: not known.
};
// A message on this connection can not be decoded, and the shell reads nothing more from it. `why`
// names the address of its other end.
struct Unreadable {
  Link link = 0;
  std::string why;
};
struct Closed {
  Link link = 0;
};
struct ProvenDead {  // The shell has proof that this process of the scheduler's own host is gone.
  std::string node_id;
  Incarnation incarnation = 0;
};
// Answers a Probe: the kernel of the process's host says that nobody listens at its endpoint any
// more, so the process is dead.
struct NotThere {
  std::string node_id;
  Incarnation incarnation = 0;
};
struct Stored {};  // The oldest unanswered Store is durable.
struct TimePassed {};
struct Interrupted {  // A signal asks the scheduler to end.
  std::int32_t signal = 0;
};
using Event = std::variant<Started, Connected, Received, Unreadable, Closed, ProvenDead, NotThere,
                           Stored, TimePassed, Interrupted>;

// What must be done, in this order.
using Store = wire::Changes;  // Make this durable, then answer with Stored.
// Changes `record` to what is on record once the store is durable.
void apply(const Store& store, wire::Formation& record);
struct Send {
  Link link = 0;
  wire::Message message;
};
struct Close {
  Link link = 0;
};
// Try whether somebody listens at this process's endpoint. Only a refusal is answered, by NotThere.
struct Probe {
  std::string node_id;
  Incarnation incarnation = 0;
  std::string endpoint;
};
struct Seeker {  // A process that asks for a place and can not have it.
  std::string node_id;
  std::string host;
  std::int64_t pid = 0;
};
// What a rank did to reach the version from which all go on.
struct Rebuilt {
  Rank rank = kNoRank;
  wire::Act act = wire::Act::kKeep;
  Rank source = kNoRank;          // kReceive: whose copy of what all hold alike it took,
  Rank private_source = kNoRank;  // and who held its private part; kNoRank: nobody had to.
  std::uint64_t bytes = 0;        // That were copied.
  bool is_of_pages = false;       // Only pages that it had lost.
};
struct Note {  // For traces and reports; decides nothing.
  enum class Kind : std::uint8_t {
    kFault,
    kStop,
    kPlan,
    kRepaired,
    kResume,
    kRecovered,
    kHow,
    kRefused,   // A message was refused: it is not its sender's to send, or can not be true.
    kTaken,     // `seeker` gets no place, or has to wait, because others have them.
    kHeldUp,    // The others wait for this rank.
    kRemark,    // What users are told: of a rank's remark, of lost pages, of a drill.
    kTookOver,  // A process has taken the place of the rank, whose process was lost.
  };
  Kind kind = Kind::kFault;
  Generation generation = 0;
  Version version = 0;
  // kFault: the lost rank. kHow: the rank whose cause of death has become known. kRefused: the
  // sender's.
  Rank rank = kNoRank;
  wire::Reason reason = {};
  std::uint64_t detected_ns = 0;  // kFault: when its agent knew, by this host's clock; 0: unknown.
  Seeker seeker = {};             // kTaken
  std::uint64_t steps_lost = 0;   // kPlan: steps that were known to be committed and are lost.
  std::vector<Rebuilt> rebuilt;   // kRepaired: what the ranks did that had not kept the version.
};
struct End {
  bool success = false;
  wire::Reason reason;
};
// Everybody who is connected has been told of the job's end: exit once no connection is left.
// Agents of other hosts hang up themselves when they have heard of the end.
struct Leave {
  bool lingers = false;  // Processes that have not heard of the end may come: stay for a while.
};
using Action = std::variant<Store, Send, Answer, Close, Probe, Note, End, Leave>;
using Actions = std::vector<Action>;

}  // namespace holdfast::controller
