// Rehearsals: which rank of a host is rehearsed when, and what of it people have to hear. A
// rehearsal is a process, no member of the job, that makes a rank's step again, as a successor
// would, and says whether it found the same.
//
// Pure: the agent's machine starts and ends the processes, and gives the pauses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "wire/messages.h"

namespace holdfast::agent {

using Process = std::uint64_t;  // Names a child for its whole life; never used again.

struct RehearsalOptions {
  bool on = false;
  bool strict = false;  // What differs ends the job.
  Duration interval = std::chrono::seconds(60);
  Duration at_most = std::chrono::seconds(600);  // One may take so long.
  std::string logs = ".";                        // The folder, for words.
};

// A rank of which nothing could be compared so often on end has a long rest.
inline constexpr int kSkipsOnEnd = 3;
inline constexpr Duration kSkippedRest = std::chrono::minutes(30);
// After a difference, so many further steps of the rank have to be equal before it is blamed.
inline constexpr int kEqualsToBlame = 3;
// So many different sentences of one rank are told.
inline constexpr std::size_t kMostTold = 16;

// What has come of a rehearsal.
struct News {
  std::optional<wire::Reason> told;  // Nothing: nobody has to hear of that, or has already.
  bool ends_job = false;             // Only if it is strict.
};

// What is read at most of what a rehearsal has written.
inline constexpr std::size_t kMostVerdictBytes = 4096;
// The verdict in it, of no place yet. Nothing: it is none. Any bytes may be read.
[[nodiscard]] std::optional<wire::RehearsalState> verdict_in(std::string_view bytes);

[[nodiscard]] std::string rehearsal_log(const std::string& node_id);

class Rehearsals {
 public:
  // Makes a pause: over() is told of its end.
  using Pause = std::function<std::uint64_t(Duration)>;

  explicit Rehearsals(RehearsalOptions options) : options_(std::move(options)) {}

  // All ranks have made a step in this generation. True: by that it is known of a recovery that
  // nobody has told of.
  [[nodiscard]] bool hear_of_step(Generation generation);
  // Until a step is made in a newer generation, none begins. Whoever is under way has to be ended.
  void hear_of_fault();

  // Whose turn it is; nothing: nobody's.
  [[nodiscard]] std::optional<std::string> next(const std::vector<std::string>& places) const;
  void begin(Process process, const std::string& node_id, const Pause& pause);
  [[nodiscard]] Process under_way() const { return process_; }  // 0: none.
  [[nodiscard]] const std::string& node_id() const { return node_id_; }
  // It is being ended, and nothing that it may say counts any more. False: that is so already.
  bool call_off();
  // After a verdict of kDiffers further steps of the same rank are rehearsed at once. A program
  // that keeps something outside of State differs again, and that ends a strict job. If
  // kEqualsToBlame steps are equal, and no other rank of this host has ever differed, the verdict
  // becomes kWrong: the rank itself computed wrong.
  [[nodiscard]] News conclude(wire::RehearsalState verdict, const std::vector<std::string>& places,
                              const Pause& pause);
  // Its process has ended. True: what it has left counts.
  [[nodiscard]] bool end();
  // It wants another process to rehearse the same step. False: that is the second one already.
  [[nodiscard]] bool go_on();
  // Of the next process: 2, if it goes on with what a first one has left.
  [[nodiscard]] std::uint64_t attempt() const { return goes_on_ ? 2 : 1; }
  // True: the one under way takes too long.
  [[nodiscard]] bool over(std::uint64_t pause);

  // Of each rank that has one: the newest verdict.
  [[nodiscard]] std::vector<wire::RehearsalState> verdicts() const;
  [[nodiscard]] const RehearsalOptions& options() const { return options_; }

 private:
  struct Entry {
    wire::RehearsalState verdict;
    std::uint64_t order = 0;  // Grows from one rehearsal to the next.
    int skipped = 0;          // How often on end.
    std::uint64_t rests = 0;  // The pause that it waits for; 0: for none.
    std::set<std::pair<wire::Verdict, std::string>> told;
    int equals_left = 0;  // Not 0: `verdict` is kDiffers, and so many steps must still be equal.
  };
  bool weigh(Entry& entry, wire::RehearsalState verdict);
  [[nodiscard]] std::optional<wire::Reason> tell(Entry& entry) const;

  RehearsalOptions options_;
  std::map<std::string, Entry> entries_;
  std::uint64_t concluded_ = 0;
  std::set<std::string> differed_;  // The ranks of which a step ever differed.
  bool program_differs_ = false;    // Two steps of a rank on end differed.
  Process process_ = 0;
  std::string node_id_;  // Of the newest.
  bool counts_ = false;  // What the process will leave.
  bool again_ = false;   // `node_id_` goes first: it was called off, goes on, or is in doubt.
  bool goes_on_ = false;
  bool is_second_ = false;  // The process under way goes on.
  std::uint64_t limit_ = 0;
  std::uint64_t rest_ = 0;
  Generation heard_ = 0;  // The newest in which a step was made.
  Generation after_ = 0;  // A fault was in this one, or none yet.
  bool may_begin_ = false;
};

}  // namespace holdfast::agent
