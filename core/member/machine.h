// A worker's part of the protocol: stops, reports, repairs and goes on as the scheduler says.
//
// Pure: no clock, no I/O, no threads. It stands between two outsiders: the connection to the
// scheduler, which may break at any time, and the training thread, which is told to leave its
// collectives and comes back when it has parked. Why it is right: docs/protocol/recovery.md.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "core/address_book.h"
#include "core/holding.h"
#include "core/table.h"
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
struct AddressesFound {  // Its agent has left them for the workers of its host.
  std::shared_ptr<const AddressBook> book;
};
struct AddressesOverdue {};  // Its agent has not left those that are awaited for a while.
struct GroupEnded {};        // That of the running generation, and for a while nobody has said why.
struct TrainingEnded {
  Version version = 0;
};
struct TrainingFailed {
  wire::Reason reason;
};
using Event =
    std::variant<Connected, Disconnected, Received, Parked, RepairDone, Committed, AddressesFound,
                 AddressesOverdue, GroupEnded, TrainingEnded, TrainingFailed>;
inline constexpr const char* kEventNames[] = {"connected",       "disconnected",      "received",
                                              "parked",          "repair done",       "committed",
                                              "addresses found", "addresses overdue", "group ended",
                                              "training ended",  "training failed"};
static_assert(std::size(kEventNames) == std::variant_size_v<Event>);

// What must be done.
struct Send {
  wire::Message message;
};
struct RankGiven {  // The rank is known.
  Rank rank = kNoRank;
  std::int32_t world_size = 0;
  std::uint64_t run_id = 0;
  std::shared_ptr<const AddressBook> peers;  // Empty: all share one memory.
};
struct Abort {  // Make the collectives of this generation, or the wait for its peers, end at once.
  Generation generation = 0;
};
struct Repair {  // For the parked training thread; answered by RepairDone.
  Generation generation = 0;
  Version version = 0;
  wire::Order order;
};
struct StopRepair {};  // The repair under way comes too late: it may end as soon as it can.
struct Go {  // For the parked training thread: join the group of this generation and train.
  Generation generation = 0;
  Version version = 0;
  Rank ended = kNoRank;  // Will never join, so that nobody can (P33). kNoRank: all may.
  std::shared_ptr<const AddressBook> peers;  // As of RankGiven.
};
// Look for what its agent leaves, as long as awaits_addresses(); say AddressesOverdue once.
struct AwaitAddresses {};
struct Released {};  // The end of the training is on record; the process may end.
struct Say {         // For the user, once.
  wire::Reason reason;
};
struct GiveUp {  // The job is over or this process has no place in it.
  bool success = false;
  wire::Reason reason;
  bool stood_by = false;  // Another process had its place until the job ended well.
  bool job_ended = false;
};
using Action = std::variant<Send, RankGiven, Abort, Repair, StopRepair, Go, Released, Say, GiveUp,
                            AwaitAddresses>;
using Actions = std::vector<Action>;

enum class State : std::uint8_t {
  kStarting,  // The training thread has not parked yet.
  kParked,
  kRepairing,
  kTraining,
  kEnded,  // The training has ended; its Finished is on record, or will be.
};
inline constexpr std::size_t kStates = 5;
[[nodiscard]] const char* name(State state);
// {state × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<State>> transitions();

class Machine {
 public:
  explicit Machine(wire::Register self) : self_(std::move(self)) {}

  [[nodiscard]] Actions step(const Event& event) {
    event_ = event.index();
    std::visit([&](const auto& e) { on(e); }, event);
    return std::exchange(actions_, {});
  }

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] bool awaits_addresses() const { return awaited_.has_value(); }

 private:
  void enter(State next);

  void on(const Connected& e);
  void on(const Disconnected&);
  void on(const Received& e) {
    std::visit([&](const auto& message) { on(message); }, e.message);
  }
  void on(const Parked& e);
  void on(const RepairDone& e);
  void on(const Committed& e);
  void on(const AddressesFound& e) { take(e.book); }
  void on(const AddressesOverdue&);
  void on(const GroupEnded&) { send(wire::GroupLost{running_}); }
  void on(const TrainingEnded& e);
  void on(const TrainingFailed& e);

  void on(const wire::Assignment& m);
  void on(const wire::Addresses& m);
  void on(const wire::Refused& m);
  void on(const wire::Waiting& m);
  void on(const wire::Farewell&);
  void on(const wire::JobEnded& m) { give_up(m.success, m.reason, true); }
  [[nodiscard]] bool stands_by() const;
  template <class Other>
  void on(const Other&) {}  // Not for a worker: a peer's nonsense changes nothing.

  void send(wire::Message message);
  void greet();
  void await_addresses(const wire::Assignment& m);
  [[nodiscard]] bool is_enough(const AddressBook& book, const wire::Assignment& m) const;
  void take(std::shared_ptr<const AddressBook> book);
  void give_rank(const wire::Assignment& m);
  void stop(Generation generation);
  void repair(const wire::Assignment& m);
  void resume(const wire::Assignment& m);
  void report();
  void give_up(bool success, wire::Reason reason, bool job_ended = false);

  wire::Register self_;
  State state_ = State::kStarting;
  std::size_t event_ = 0;  // That is being handled.
  bool connected_ = false;
  bool placed_ = false;   // It has been given its rank at some time.
  bool greeted_ = false;  // It has heard of its place on this connection,
  bool settled_ = false;  // and who the others are.
  bool over_ = false;
  Generation stopped_for_ = 0;   // The newest that it has stopped for.
  Generation running_ = 0;       // The newest generation that it was told to train in.
  Generation repaired_for_ = 0;  // The newest whose order is carried out.
  Generation repairing_for_ = 0;
  Holding holding_;
  Version ended_at_ = 0;
  std::shared_ptr<const AddressBook> book_ = std::make_shared<AddressBook>();
  std::optional<wire::Assignment>
      awaited_;  // The newest; the addresses that it names are not here.
  std::optional<wire::Reason> failure_;
  std::optional<wire::Reason> waits_for_;  // Until it is placed.
  Actions actions_;
};

}  // namespace holdfast::member
