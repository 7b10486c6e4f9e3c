// What a rehearsal does: a process that is no member of the job makes one step of a rank again, as
// a successor of that rank would, and compares.
//
// It leads a trainer machine (core/trainer) as the scheduler would, to the version from which the
// rank made the step. It decides what the comparison says: all is equal; a successor goes on
// otherwise; or no two of them go on alike. Whether two do shows a second process, which has none
// of the first one's memory.
//
// Pure: no clock, no I/O, no threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "core/assigned.h"
#include "wire/messages.h"

namespace holdfast::understudy {

// Something that a step depends on, or that it made: its name and a digest of it.
struct Note {
  std::string name;
  std::uint64_t digest = 0;
  bool operator==(const Note&) const = default;
};

// The name of a note that says: what follows are results of the step, made of what the rank got
// from others. A difference in what the rank gave to others comes before these.
inline constexpr std::string_view kResults;

// A note whose name begins so may be another one in each process, such as a time. It is compared
// only where two rehearsals of the step agree on it.
inline constexpr char kMayVary = '?';

// All that was noted of one step.
struct Account {
  std::vector<Note> notes;                             // By the program's face, in its order.
  std::map<std::string, std::vector<Note>> exchanges;  // What the rank gave, by group.
  // Empty: the step was made to its end. Else what the program came to instead, in words. Then
  // notes and exchanges break off there.
  std::string otherwise;
  bool operator==(const Account&) const = default;
};

struct Conclusion {
  wire::Verdict verdict = wire::Verdict::kEqual;
  std::string what;  // What differs first, in words; of kEqual nothing.
};

// What differs first, in this order: notes, since they have names; what was given to exchanges;
// notes after kResults. Nothing: all is equal.
[[nodiscard]] std::optional<std::string> first_difference(const Account& rank, const Account& own);

// The part that is played.
struct Part {
  Rank rank = 0;
  std::int32_t world_size = 1;
  std::uint64_t run_id = 0;
};

class Machine {
 public:
  using Assignments = std::vector<Assigned>;
  // `former`: what a process did that has rehearsed the same step before this one.
  explicit Machine(Part part, std::optional<Account> former = {})
      : part_(part), former_(std::move(former)) {}

  // `account`: what the rank did in the step after `version`.
  [[nodiscard]] Assignments begin(Version version, Account account);
  // The trainer machine says something to the scheduler.
  [[nodiscard]] Assignments hear(const wire::Message& said);
  // The rehearsal has come to the end of the step, or to something else in its place. Nothing:
  // another process has to make the step as well. One process alone never says kDiffers.
  [[nodiscard]] std::optional<Conclusion> conclude(const Account& own) const;

  [[nodiscard]] Version version() const { return version_; }
  [[nodiscard]] const Account& account() const { return account_; }

 private:
  [[nodiscard]] Assigned assignment(wire::Stage stage) const;

  Part part_;
  Version version_ = kNoVersion;
  Account account_;  // Of the rank.
  std::optional<Account> former_;
};

}  // namespace holdfast::understudy
