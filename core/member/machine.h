// A worker's place in the job: the worker asks for it, learns its rank and where the other ranks
// are, and hears of the job's end. What the rank then does is up to the trainer machine.
//
// Pure: no clock, no I/O, no threads. The connection to the scheduler may break at any time. Why it
// is right: docs/protocol/recovery.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "core/address_book.h"
#include "core/assigned.h"
#include "wire/messages.h"

namespace holdfast::member {

// What may happen.
struct Connected {
  std::string endpoint;  // Where workers on other hosts reach this one; empty: they can not.
};
struct Disconnected {};
struct Received {
  wire::Message message;
};
struct Told {  // A message of the trainer machine to the scheduler.
  wire::Message message;
};
struct AddressesFound {  // The agent has left this book for the workers of its host.
  std::shared_ptr<const AddressBook> book;
};
struct AddressesOverdue {};  // The agent has not left the awaited book for a while.
struct TrainingFailed {
  wire::Reason reason;
};
using Event = std::variant<Connected, Disconnected, Received, Told, AddressesFound,
                           AddressesOverdue, TrainingFailed>;

// What must be done.
struct Send {
  wire::Message message;
};
struct RankGiven {  // Once for each connection: the rank and the address book are known.
  Rank rank = kNoRank;
  std::int32_t world_size = 0;
  std::uint64_t run_id = 0;
  std::shared_ptr<const AddressBook> peers;  // Empty: all ranks share one memory.
};
// Look for the book that the agent leaves, as long as awaits_addresses(). If it is late, deliver
// AddressesOverdue once.
struct AwaitAddresses {};
struct Released {};  // The end of the training is on record; the process may end.
struct Say {         // For the user, once.
  wire::Reason reason;
};
struct BeDrilled {
  wire::Drill drill;
};
struct TakeSnapshot {  // Copy this rank's part of a snapshot, once it is at the version.
  Generation generation = 0;
  Version version = 0;
};
struct GiveUp {  // The job is over, or this process has no place in it.
  bool success = false;
  wire::Reason reason;
  // It waited for a place that another process had until the job ended well.
  bool stood_by = false;
  bool job_ended = false;
};
using Action = std::variant<Send, RankGiven, Assigned, Released, Say, BeDrilled, TakeSnapshot,
                            GiveUp, AwaitAddresses>;
using Actions = std::vector<Action>;

class Machine {
 public:
  explicit Machine(wire::Register self) : self_(std::move(self)) {}

  [[nodiscard]] Actions step(const Event& event) {
    std::visit([&](const auto& e) { on(e); }, event);
    return std::exchange(actions_, {});
  }

  [[nodiscard]] bool awaits_addresses() const { return awaited_.has_value(); }

 private:
  void on(const Connected& e);
  void on(const Disconnected&);
  void on(const Received& e) {
    std::visit([&](const auto& message) { on(message); }, e.message);
  }
  void on(const Told& e) { send(e.message); }
  void on(const AddressesFound& e) { take(e.book); }
  void on(const AddressesOverdue&);
  void on(const TrainingFailed& e);

  void on(const wire::Assignment& m);
  void on(const wire::Addresses& m);
  void on(const wire::Refused& m);
  void on(const wire::Waiting& m);
  void on(const wire::Drill& m) {
    if (settled_) actions_.push_back(BeDrilled{m});
  }
  void on(const wire::Snapshot& m) {
    if (settled_ && m.word == wire::SnapshotWord::kTake) {
      actions_.push_back(TakeSnapshot{m.generation, m.version});
    }
  }
  void on(const wire::Farewell&) { actions_.push_back(Released{}); }
  void on(const wire::JobEnded& m) { give_up(m.success, m.reason, true); }
  [[nodiscard]] bool stands_by() const;
  template <class Other>
  void on(const Other&) {}  // Messages that are not for a worker are ignored.

  void send(wire::Message message);
  void await_addresses(const wire::Assignment& m);
  [[nodiscard]] bool is_enough(const AddressBook& book, const wire::Assignment& m) const;
  void take(std::shared_ptr<const AddressBook> book);
  void give_rank(const wire::Assignment& m);
  void give_up(bool success, wire::Reason reason, bool job_ended = false);

  wire::Register self_;
  bool connected_ = false;
  bool placed_ = false;   // An assignment has come at some time,
  bool greeted_ = false;  // and one on this connection;
  bool settled_ = false;  // RankGiven was emitted on this connection.
  bool over_ = false;
  std::shared_ptr<const AddressBook> book_ = std::make_shared<AddressBook>();
  std::optional<wire::Assignment>
      // The newest assignment, while the address book that it names is missing.
      awaited_;
  std::optional<wire::Reason> failure_;
  std::optional<wire::Reason> waits_for_;  // Why it waits, until it is placed.
  Actions actions_;
};

}  // namespace holdfast::member
