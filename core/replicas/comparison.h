// Replicas: what all ranks hold alike after each step, such as the parameters of data-parallel
// training. This machine says when ranks compare digests of them, who holds other values, and what
// becomes of it.
//
// If most ranks hold the same, the others are given theirs: a memory fault has changed a few bits.
// If a rank differs again one step later, its program makes the difference, and the job ends with a
// sentence that names rank, tensor and step. So it does if ranks differ in more than kMostInRow
// steps on end, whoever it is, and if no values are those of most ranks, since then nobody can tell
// which are right. A rank whose state was copied from another one does
// not count: it would be that one's second voice.
//
// All ranks come to the same verdict, since all get the same readings: also one that has just
// replaced another. runtime/worker/replicas.h exchanges, copies, waits and reads the clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace holdfast::replicas {

inline constexpr std::uint64_t kMostInRow = 3;

// A committed version, and the number of the newest step in it, by which people know it. Some
// versions are no steps: results that are kept, ends of epochs.
struct At {
  Version version = 0;
  std::uint64_t step = 0;
};

// What a rank tells the others in a comparison, sent as these bytes. Times are in nanoseconds.
struct Reading {
  std::uint64_t names = 0;     // A digest of the replicas' names; 0: the rank has none.
  std::uint64_t digest = 0;    // A digest of the digests of all of them.
  std::uint64_t is_copy = 0;   // 1: its state was copied from another rank.
  std::uint64_t relapse = 0;   // The step after the newest repair; 0: there was none.
  std::uint64_t blamed = 0;    // Who was given other values by it: bit r % 64 for rank r. So two
                               // ranks whose numbers differ by 64 count as one.
  std::uint64_t row = 0;       // In how many steps on end there were repairs, this one included.
  std::uint64_t alike = 0;     // The step in which all were alike last, perhaps by a repair.
  std::uint64_t read = 0;      // The time that computing the digests took.
  std::uint64_t exchange = 0;  // The time of the last comparison's exchange; 0: it is the first.
  std::uint64_t step = 0;      // The shortest step since the last comparison; 0: none since.
};

struct Options {
  bool warns_only = false;  // Name a difference and go on with it (HOLDFAST_DRIFT=warn).
  std::uint64_t every = 0;  // Steps between comparisons (HOLDFAST_DIGEST_EVERY); 0: see Comparison.
};

struct Verdict {
  enum class Act : std::uint8_t { kGoOn, kRepair, kEnd };
  // Of kRepair: all ranks that hold other values of this replica take those of rank `from`.
  struct Copy {
    std::size_t tensor = 0;
    std::size_t from = 0;
  };
  Act act = Act::kGoOn;
  std::string words;  // A clause that names the first difference; empty: there is nothing to say.
  std::vector<Copy> copies;
  // What names the steps that may have been computed with wrong values, and says whether nobody can
  // tell which are wrong. Empty: the program makes the difference itself.
  std::string doubt;
};

// Ranks compare before the first step of every generation, at the end of a loop, and in between
// after so many steps that comparing takes at most a thousandth of their time. Each version is
// compared at most once in a generation.
class Comparison {
 public:
  explicit Comparison(Options options) : options_(options) {}

  // Whether to compare now: before the step that follows `at` or, with `at_end`, at the end of a
  // loop whose last step made `at`.
  [[nodiscard]] bool is_due(Generation generation, At at, bool at_end) const;
  // Fills in what this rank knows of former comparisons.
  void tell(Reading& mine) const;

  enum class Heard : std::uint8_t {
    kAlike,
    kUnlike,      // Exchange the digests of each replica, and call judge().
    kOtherNames,  // Ranks hold replicas of other names than rank 0; unlike_names() says which. Each
                  // is told of once, if differences may stay.
  };
  // Call it after each exchange. `readings`: those of all ranks, by rank. If one has no replicas,
  // nothing is compared.
  [[nodiscard]] Heard heard(Generation generation, At at, std::span<const Reading> readings);
  [[nodiscard]] const std::string& unlike_names() const { return unlike_names_; }

  // `digests`: those of rank 0's replicas in the order of the names, then those of rank 1's, and so
  // on, of the version that was heard of last.
  [[nodiscard]] Verdict judge(std::span<const std::string> names,
                              std::span<const std::uint64_t> digests);
  // All copies of a verdict were made.
  void repaired() { alike_ = at_.step; }

 private:
  // Whether ranks hold replicas of other names. Sets unlike_names_; empty: there is nothing to say.
  bool look_at_names(std::span<const Reading> readings);
  void note_repair(std::uint64_t blamed);

  Options options_;
  Generation generation_ = 0;
  At at_;  // What was compared last.
  Version next_ = 0;
  std::uint64_t relapse_ = 0;  // As in Reading, as are the next three.
  std::uint64_t blamed_ = 0;
  std::uint64_t row_ = 0;
  std::uint64_t alike_ = 0;
  std::vector<bool> is_copy_;     // By rank.
  std::set<std::string> named_;   // Each replica is named once, if differences may stay.
  std::set<std::size_t> unlike_;  // Ranks that unlike_names() has named, if differences may stay.
  std::string unlike_names_;
};

// How many steps to make until the next comparison.
[[nodiscard]] std::uint64_t steps_between(std::span<const Reading> readings);

}  // namespace holdfast::replicas
