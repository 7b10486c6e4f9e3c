// Says once for every struct which field number each member has. codec.cc writes and reads by these
// lists. A number is never used again: if a member goes, its number stays reserved. holdfast.proto
// says the same, and a test compares the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "wire/messages.h"

namespace holdfast::wire {

// The longest list or text that decode() accepts. Longer ones must not be sent or stored.
struct Bounds {
  std::size_t entries = kMaxListLength;
  std::size_t text_bytes = kAnyBytes;  // Of the text, or of each one in a list.
  static constexpr std::size_t kAnyBytes = ~std::size_t{0};
};

template <class Struct, class Member>
struct Field {
  std::uint32_t number;
  Member Struct::*member;
  Bounds bounds;
};

template <class Struct, class Member>
struct Bounded {
  Member Struct::*member;
  Bounds bounds;
};
template <class Struct, class Member>
constexpr auto bounded(Member Struct::*member, Bounds bounds = {}) {
  return Bounded<Struct, Member>{member, bounds};
}
template <class Struct, class Member>
constexpr auto bounded(Bounded<Struct, Member> member) {
  return member;
}

template <class Struct, class... Members>
constexpr auto numbered(std::uint32_t number, Bounded<Struct, Members>... members) {
  return std::tuple{Field<Struct, Members>{number++, members.member, members.bounds}...};
}
// Numbers the members 1, 2, 3, ..., or from kFirst on, as they are listed: each one as
// &Struct::member, or bounded().
template <std::uint32_t kFirst = 1, class... Members>
constexpr auto in_order(Members... members) {
  return numbered(kFirst, bounded(members)...);
}

template <class Struct>
struct Fields;

template <>
struct Fields<Register> {
  static constexpr auto kList = std::tuple_cat(
      in_order(&Register::job, &Register::node_id, &Register::incarnation, &Register::attempt,
               &Register::host, &Register::pid, &Register::protocol),
      in_order<9>(&Register::memory, &Register::endpoint, &Register::domain, &Register::serves));
};
template <>
struct Fields<Ending> {
  static constexpr auto kList = in_order(&Ending::kind, &Ending::code);
};
template <>
struct Fields<Awaited> {
  static constexpr auto kList =
      in_order(&Awaited::kind, &Awaited::rank, &Awaited::node_id, &Awaited::pid, &Awaited::ending);
};
template <>
struct Fields<Reason> {
  static constexpr auto kList =
      in_order(&Reason::kind, &Reason::rank, &Reason::pid, &Reason::ending, &Reason::count,
               &Reason::total, &Reason::version, &Reason::node_id, &Reason::host, &Reason::other,
               &Reason::other_host, &Reason::detail, &Reason::awaited, &Reason::doing);
};
template <>
struct Fields<Seat> {
  static constexpr auto kList =
      std::tuple_cat(in_order(&Seat::node_id),
                     in_order<3>(&Seat::incarnation, &Seat::attempt, &Seat::pid, &Seat::host,
                                 &Seat::domain, &Seat::endpoint, &Seat::finished, &Seat::version,
                                 &Seat::memory, &Seat::moved, &Seat::agent, &Seat::given));
};
template <>
struct Fields<Location> {
  static constexpr auto kList = in_order(&Location::holder, &Location::host, &Location::endpoint);
};
template <>
struct Fields<Order> {
  static constexpr auto kList = in_order(&Order::act, &Order::source, &Order::private_source,
                                         &Order::moved, &Order::snapshot);
};
template <>
struct Fields<SnapshotName> {
  static constexpr auto kList = in_order(&SnapshotName::version, &SnapshotName::name);
};
template <>
struct Fields<Formation> {
  static constexpr auto kList =
      in_order(&Formation::job, &Formation::run_id, &Formation::generation, &Formation::stage,
               &Formation::version, &Formation::recoveries, &Formation::roster, &Formation::orders,
               &Formation::cause, &Formation::success, &Formation::end, &Formation::drained,
               &Formation::reached, &Formation::snapshots, &Formation::loads, &Formation::pauses);
};
template <>
struct Fields<Remarked> {
  static constexpr auto kList = in_order(&Remarked::unix_ms, &Remarked::what);
};
template <>
struct Fields<HostAddress> {
  static constexpr auto kList =
      in_order(&HostAddress::host, &HostAddress::domain, &HostAddress::address);
};
template <>
struct Fields<Addresses> {
  static constexpr auto kList = in_order(&Addresses::name, &Addresses::base, &Addresses::addresses,
                                         &Addresses::ranks, &Addresses::at, &Addresses::ports);
};
template <>
struct Fields<AskAddresses> {
  static constexpr auto kList = std::tuple{};
};
template <>
struct Fields<Assignment> {
  static constexpr auto kList =
      std::tuple_cat(in_order(&Assignment::rank, &Assignment::world_size, &Assignment::run_id,
                              &Assignment::generation, &Assignment::stage, &Assignment::version,
                              &Assignment::order, &Assignment::ended, &Assignment::cause),
                     in_order<11>(&Assignment::addresses, &Assignment::pauses));
};
template <>
struct Fields<Refused> {
  static constexpr auto kList = in_order(&Refused::sentence, &Refused::reason);
};
template <>
struct Fields<PlaceState> {
  static constexpr auto kList =
      in_order(&PlaceState::node_id, &PlaceState::incarnation, &PlaceState::attempt,
               &PlaceState::alive, &PlaceState::ending, &PlaceState::detected_ns);
};
template <>
struct Fields<SpareState> {
  static constexpr auto kList = in_order(&SpareState::node_id, &SpareState::is_ready);
};
template <>
struct Fields<RehearsalState> {
  static constexpr auto kList =
      in_order(&RehearsalState::node_id, &RehearsalState::verdict, &RehearsalState::version,
               bounded(&RehearsalState::sentence, {.text_bytes = kMaxSentenceBytes}));
};
template <>
struct Fields<StandingState> {
  static constexpr auto kList = in_order(
      &StandingState::node_id, &StandingState::generation, &StandingState::operations,
      &StandingState::version, &StandingState::doing, &StandingState::has_stepped,
      &StandingState::for_ms, bounded(&StandingState::report, {.text_bytes = kMaxSentenceBytes}),
      &StandingState::exchanges);
};
template <>
struct Fields<AgentState> {
  static constexpr auto kList =
      in_order(&AgentState::job, &AgentState::agent_id, &AgentState::host, &AgentState::places,
               &AgentState::protocol, &AgentState::takes, &AgentState::spares,
               &AgentState::rehearsals, &AgentState::standing, &AgentState::remarks);
};
template <>
struct Fields<Waiting> {
  static constexpr auto kList = in_order(&Waiting::reason, &Waiting::remark);
};
template <>
struct Fields<Evict> {
  static constexpr auto kList = in_order(&Evict::node_id, &Evict::incarnation, &Evict::is_hung);
};
template <>
struct Fields<Inspect> {
  static constexpr auto kList = in_order(&Inspect::node_id, &Inspect::incarnation);
};
template <>
struct Fields<Places> {
  static constexpr auto kList = in_order(&Places::node_ids, &Places::drains);
};
template <>
struct Fields<Move> {
  static constexpr auto kList = in_order(&Move::from, &Move::to, &Move::drains);
};
template <>
struct Fields<Moved> {
  static constexpr auto kList = in_order(&Moved::reason);
};
template <>
struct Fields<Drill> {
  static constexpr auto kList = in_order(&Drill::rank, &Drill::kind, &Drill::phase, &Drill::at_step,
                                         &Drill::for_ms, &Drill::seed, &Drill::host);
};
template <>
struct Fields<Drilled> {
  static constexpr auto kList = in_order(&Drilled::reason);
};
template <>
struct Fields<Pause> {
  static constexpr auto kList = in_order(&Pause::on, &Pause::pauses, &Pause::version);
};
template <>
struct Fields<Paused> {
  static constexpr auto kList = in_order(&Paused::reason);
};
template <>
struct Fields<SnapshotFile> {
  static constexpr auto kList =
      in_order(&SnapshotFile::rank, &SnapshotFile::bytes, &SnapshotFile::digest);
};
template <>
struct Fields<Snapshot> {
  static constexpr auto kList = in_order(
      &Snapshot::word, &Snapshot::generation, &Snapshot::version, &Snapshot::name, &Snapshot::files,
      &Snapshot::old, bounded(&Snapshot::why, {.text_bytes = kMaxSentenceBytes}));
};
template <>
struct Fields<HeldCopy> {
  static constexpr auto kList = in_order(&HeldCopy::ward, &HeldCopy::version, &HeldCopy::staged);
};
template <>
struct Fields<Report> {
  static constexpr auto kList =
      in_order(&Report::generation, &Report::version, &Report::staged, &Report::private_is_own,
               &Report::held, &Report::has_lost_shared, &Report::has_lost_private);
};
template <>
struct Fields<Repaired> {
  static constexpr auto kList =
      in_order(&Repaired::generation, &Repaired::bytes, &Repaired::is_of_pages);
};
template <>
struct Fields<Progress> {
  static constexpr auto kList =
      in_order(&Progress::generation, &Progress::version, &Progress::loss, &Progress::own_us,
               &Progress::between_us, &Progress::holds);
};
template <>
struct Fields<JobProgress> {
  static constexpr auto kList = in_order(&JobProgress::generation, &JobProgress::version,
                                         &JobProgress::loss, &JobProgress::recoveries);
};
template <>
struct Fields<GroupLost> {
  static constexpr auto kList = in_order(&GroupLost::generation, &GroupLost::pages);
};
template <>
struct Fields<Finished> {
  static constexpr auto kList = in_order(&Finished::generation, &Finished::version);
};
template <>
struct Fields<Farewell> {
  static constexpr auto kList = std::tuple{};
};
template <>
struct Fields<Failed> {
  static constexpr auto kList = in_order(&Failed::reason);
};
template <>
struct Fields<Remark> {
  static constexpr auto kList = in_order(&Remark::reason);
};
template <>
struct Fields<JobEnded> {
  static constexpr auto kList = in_order(&JobEnded::success, &JobEnded::reason);
};
template <>
struct Fields<StatusQuery> {
  static constexpr auto kList = std::tuple{};
};
template <>
struct Fields<StatusReply> {
  static constexpr auto kList = in_order(&StatusReply::json);
};
template <>
struct Fields<Heartbeat> {
  static constexpr auto kList = std::tuple{};
};

inline constexpr Bounds kKeyBounds{.entries = kMaxKeys, .text_bytes = kMaxKeyBytes};
inline constexpr Bounds kValueBounds{.text_bytes = kMaxValueBytes};
template <>
struct Fields<Put> {
  static constexpr auto kList =
      in_order(&Put::id, bounded(&Put::key, kKeyBounds), bounded(&Put::value, kValueBounds),
               &Put::expected, &Put::writer);
};
template <>
struct Fields<Kept> {
  static constexpr auto kList = in_order(&Kept::id, &Kept::reason, &Kept::is_set, &Kept::version);
};
template <>
struct Fields<Get> {
  static constexpr auto kList =
      in_order(&Get::id, bounded(&Get::keys, kKeyBounds), &Get::at_once, &Get::newer_than);
};
template <>
struct Fields<Got> {
  static constexpr auto kList = in_order(&Got::id, &Got::found, bounded(&Got::key, kKeyBounds),
                                         bounded(&Got::value, kValueBounds), &Got::version);
};

}  // namespace holdfast::wire
