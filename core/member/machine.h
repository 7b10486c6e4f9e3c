// A worker's part of the protocol: stops, reports, repairs and goes on as the scheduler says.
//
// Pure: no clock, no I/O, no threads. It stands between two outsiders: the connection to the
// scheduler, which may break at any time, and the training thread, which is told to leave its
// collectives and comes back when it has parked. Why it is right: docs/protocol/recovery.md.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "core/holding.h"
#include "wire/messages.h"

namespace holdfast::member {

// What may happen.
struct Connected {};
struct Disconnected {};
struct Received {
  wire::Message message;
};
struct Parked {  // The training thread wants to (re)join and touches nothing until told to go.
  Holding holding;
};
struct RepairDone {
  Holding holding;
};
struct Committed {  // A step was made. The shell says so at a bounded rate, but always the first.
  Version version = 0;
  double loss = 0;
};
struct TrainingEnded {
  Version version = 0;
};
struct TrainingFailed {
  std::string reason;
};
using Event = std::variant<Connected, Disconnected, Received, Parked, RepairDone, Committed,
                           TrainingEnded, TrainingFailed>;

// What must be done.
struct Send {
  wire::Message message;
};
struct Place {  // The rank is known.
  Rank rank = kNoRank;
  std::int32_t world_size = 0;
  std::uint64_t run_id = 0;
};
struct Abort {  // Make the collectives of this generation, or the wait for its peers, end at once.
  Generation generation = 0;
};
struct Mend {  // For the parked training thread; answered by RepairDone.
  wire::Repair repair;
};
struct Go {  // For the parked training thread: join the group of this generation and train.
  Generation generation = 0;
  Version version = 0;
  Rank ended = kNoRank;  // Will never join, so that nobody can (P33). kNoRank: all may.
};
struct Released {};  // The end of the training is on record; the process may end.
struct Say {         // For the user, once.
  std::string text;
};
struct GiveUp {  // The job is over or this process has no place in it.
  bool success = false;
  std::string reason;
};
using Action = std::variant<Send, Place, Abort, Mend, Go, Released, Say, GiveUp>;
using Actions = std::vector<Action>;

class Machine {
 public:
  explicit Machine(wire::Register self) : self_(std::move(self)) {}

  [[nodiscard]] Actions step(const Event& event) {
    std::visit([&](const auto& e) { on(e); }, event);
    return std::exchange(actions_, {});
  }

 private:
  enum class Phase : std::uint8_t { kStarting, kParked, kMending, kTraining, kEnded };

  void on(const Connected&);
  void on(const Disconnected&) { connected_ = false; }
  void on(const Received& e) {
    std::visit([&](const auto& message) { on(message); }, e.message);
  }
  void on(const Parked& e);
  void on(const RepairDone& e);
  void on(const Committed& e);
  void on(const TrainingEnded& e);
  void on(const TrainingFailed& e);

  void on(const wire::Accepted& m);
  void on(const wire::Refused& m) { give_up(false, m.reason); }
  void on(const wire::Waiting& m);
  void on(const wire::Stop& m);
  void on(const wire::Repair& m);
  void on(const wire::Resume& m);
  void on(const wire::Farewell&);
  void on(const wire::JobEnded& m) { give_up(m.success, m.reason); }
  template <class Other>
  void on(const Other&) {}  // Not for a worker: a peer's nonsense changes nothing.

  void send(wire::Message message);
  void report();
  void give_up(bool success, std::string reason);

  wire::Register self_;
  Phase phase_ = Phase::kStarting;
  bool connected_ = false;
  bool placed_ = false;  // Had been accepted.
  bool over_ = false;
  Generation stopped_for_ = 0;   // The newest Stop.
  Generation running_ = 0;       // The newest generation that it was told to train in.
  Generation repaired_for_ = 0;  // The newest whose Repair is done.
  Generation mending_for_ = 0;
  Holding holding_;
  Version ended_at_ = 0;
  std::string failure_;
  Actions actions_;
};

}  // namespace holdfast::member
