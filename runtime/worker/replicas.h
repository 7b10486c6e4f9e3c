// Replicas: compares what all ranks hold alike, and gives a rank whose values differ those of the
// others, or ends the job (HOLDFAST_DRIFT). core/replicas/comparison.h decides when, and which.
//
// What is compared, and repaired, is the committed version in the session's store. A face that
// trains on other memory copies what repaired() names from there.
//
// Threads: the training thread calls everything.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "collective/outcome.h"
#include "core/replicas/comparison.h"
#include "runtime/worker/drills.h"
#include "runtime/worker/session.h"
#include "runtime/worker/worker.h"

namespace holdfast::runtime {

class Replicas {
 public:
  struct Table {
    std::vector<std::string> names;  // The same ones, in the same order, on all ranks.
    // The bytes of a replica, by its place in `names`, in the committed version.
    std::function<std::span<std::byte>(std::size_t)> bytes_of;
    // For a face that trains on other memory: how a drill flips a bit there.
    Drills::Flip flip;
    std::uint64_t step = 0;  // The number by which people know the committed version of now.
  };

  Replicas(Worker& worker, Session& session);

  // What this rank holds alike with the others, from the committed version on. Without names it
  // takes part in comparisons, and has nothing to compare.
  void hold(Table table);

  // Call it after each begin_step(). From these calls it learns how long a step takes.
  void begun();
  // Whether to call compare() now. `at_end`: between the end of a loop's last step and the next
  // begin_step(); else right after begin_step(). Ranks of a generation get the same answers.
  [[nodiscard]] bool is_due(bool at_end) const;
  // Compares, on all ranks. A fault meanwhile makes a step void that was begun, and the next
  // generation compares again. Errors: the job is over.
  [[nodiscard]] Status compare();
  // At a loop's end, for a program whose ranks exchange nothing between loops: compares if that is
  // due, and again after a fault, in a step that is begun for it and given up. Errors: the same.
  [[nodiscard]] Status compare_for_certain();
  // Call it before the session's end. Errors: a fault has kept a difference from being repaired,
  // and nothing was compared since. The job is over.
  [[nodiscard]] Status settled();
  // The replicas, by their places in Table::names, to which the last call has given other values.
  [[nodiscard]] const std::vector<std::size_t>& repaired() const { return repaired_; }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Result<collective::Outcome> try_once();
  [[nodiscard]] Result<collective::Outcome> look_at_each();
  [[nodiscard]] collective::Outcome repair(const std::vector<replicas::Verdict::Copy>& copies,
                                           std::span<const std::uint64_t> digests);
  void read();
  [[nodiscard]] static std::string told(const replicas::Verdict& verdict);
  void say(const std::string& words);
  [[nodiscard]] replicas::At at() const;

  Worker& worker_;
  Session& session_;
  replicas::Comparison comparison_;
  Table table_;
  Version held_at_ = 0;      // The committed version when the table was given.
  std::uint64_t names_ = 0;  // A digest of names and sizes; 0: there are none.
  std::vector<std::uint64_t> digests_;
  std::vector<std::size_t> repaired_;
  replicas::Reading mine_;
  std::string unrepaired_;                  // What was found, until its repair is complete.
  Clock::time_point began_{};               // When the step under way began.
  std::optional<std::uint64_t> following_;  // The number of that step; none: it is not timed.
};

}  // namespace holdfast::runtime
