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
struct Started {  // As the journal has them.
  std::vector<wire::KeyValue> kept;
  std::vector<wire::Writer> writers;
};
// There is a connection, and who is at its other end has proven to belong to the job, as a process
// of this kind. It comes once, and before anything that is received there.
struct Connected {
  Link link = 0;
  wire::PeerKind kind = wire::PeerKind::kWorker;
};
struct Received {
  Link link = 0;
  wire::Message message;
};
// What has come there can not be read, and nothing more of it is. `why` names its address.
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
// The kernel of its host says that nobody listens where this process did: it is dead. Answers a
// Probe.
struct NotThere {
  std::string node_id;
  Incarnation incarnation = 0;
};
struct Stored {};  // The oldest unanswered Store is durable.
struct TimePassed {};
struct Interrupted {  // Somebody ends the scheduler.
  std::int32_t signal = 0;
};
using Event = std::variant<Started, Connected, Received, Unreadable, Closed, ProvenDead, NotThere,
                           Stored, TimePassed, Interrupted>;

// What must be done, in this order.
using Store = wire::Changes;  // To be made durable, and answered by Stored.
// What is on record once the store is durable.
void apply(const Store& store, wire::Formation& record);
struct Send {
  Link link = 0;
  wire::Message message;
};
struct Close {
  Link link = 0;
};
// Whether somebody listens at the endpoint of this process is to be seen. Only a refusal is
// answered.
struct Probe {
  std::string node_id;
  Incarnation incarnation = 0;
  std::string endpoint;
};
struct Seeker {  // Who asks for a place that it can not have.
  std::string node_id;
  std::string host;
  std::int64_t pid = 0;
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
    kRefused,  // Somebody said what is not for it to say, or can not be.
    kTaken,    // `seeker` can not have a place, or has to wait, because others have them.
  };
  Kind kind = Kind::kFault;
  Generation generation = 0;
  Version version = 0;
  Rank rank = kNoRank;  // kFault: the lost rank. kHow: the rank whose death is explained by now.
  wire::Reason reason = {};
  std::uint64_t detected_ns = 0;  // kFault: when its agent knew, by our clock; 0: not known.
  Seeker seeker = {};             // kTaken
  std::uint64_t steps_lost = 0;   // kPlan: that were known to be committed, and are not any more.
};
struct End {
  bool success = false;
  wire::Reason reason;
};
// All who are here have been told of the end: exit once nobody is here. Agents of other hosts hang
// up by themselves when they have heard it.
struct Leave {
  bool lingers = false;  // Somebody who has not heard of it looks for us: stay for a while.
};
using Action = std::variant<Store, Send, Answer, Close, Probe, Note, End, Leave>;
using Actions = std::vector<Action>;

}  // namespace holdfast::controller
