// Says once for every struct which field number each member has. codec.cc writes and reads by these
// lists. A number is never used again: if a member goes, its number stays reserved. holdfast.proto
// says the same, and a test compares the two.
#pragma once

#include <cstdint>
#include <tuple>

#include "wire/messages.h"
#include "wire/record.h"

namespace holdfast::wire {

template <class Struct, class Member>
struct Field {
  std::uint32_t number;
  Member Struct::*member;
};
// Numbers the members 1, 2, 3, ... as they are listed.
template <class Struct, class... Members>
constexpr auto in_order(Members Struct::*... members) {
  std::uint32_t number = 0;
  return std::tuple{Field<Struct, Members>{++number, members}...};
}

template <class Struct>
struct Fields;

template <>
struct Fields<Register> {
  static constexpr auto kList =
      in_order(&Register::job, &Register::node_id, &Register::incarnation, &Register::attempt,
               &Register::host, &Register::pid, &Register::protocol, &Register::generation,
               &Register::memory);
};
template <>
struct Fields<Accepted> {
  static constexpr auto kList = in_order(&Accepted::rank, &Accepted::world_size, &Accepted::run_id);
};
template <>
struct Fields<Refused> {
  static constexpr auto kList = in_order(&Refused::reason);
};
template <>
struct Fields<Waiting> {
  static constexpr auto kList = in_order(&Waiting::reason);
};
template <>
struct Fields<Slot> {
  static constexpr auto kList =
      in_order(&Slot::node_id, &Slot::incarnation, &Slot::attempt, &Slot::alive, &Slot::exit_code,
               &Slot::last_words, &Slot::detected_ns);
};
template <>
struct Fields<AgentState> {
  static constexpr auto kList =
      in_order(&AgentState::job, &AgentState::agent_id, &AgentState::host, &AgentState::slots);
};
template <>
struct Fields<Evict> {
  static constexpr auto kList = in_order(&Evict::node_id, &Evict::incarnation);
};
template <>
struct Fields<Stop> {
  static constexpr auto kList = in_order(&Stop::generation, &Stop::cause);
};
template <>
struct Fields<Report> {
  static constexpr auto kList = in_order(&Report::generation, &Report::version, &Report::staged);
};
template <>
struct Fields<Repair> {
  static constexpr auto kList =
      in_order(&Repair::generation, &Repair::version, &Repair::kind, &Repair::source);
};
template <>
struct Fields<Repaired> {
  static constexpr auto kList = in_order(&Repaired::generation);
};
template <>
struct Fields<Resume> {
  static constexpr auto kList = in_order(&Resume::generation, &Resume::version, &Resume::ended);
};
template <>
struct Fields<Progress> {
  static constexpr auto kList =
      in_order(&Progress::generation, &Progress::version, &Progress::loss);
};
template <>
struct Fields<JobProgress> {
  static constexpr auto kList = in_order(&JobProgress::generation, &JobProgress::version,
                                         &JobProgress::loss, &JobProgress::recoveries);
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
template <>
struct Fields<Lease> {
  static constexpr auto kList = in_order(&Lease::node_id, &Lease::incarnation, &Lease::attempt,
                                         &Lease::finished, &Lease::version, &Lease::pid);
};
template <>
struct Fields<Record> {
  static constexpr auto kList = in_order(
      &Record::job, &Record::run_id, &Record::ranks, &Record::generation, &Record::resumed,
      &Record::version, &Record::recoveries, &Record::ended, &Record::success, &Record::reason);
};

}  // namespace holdfast::wire
