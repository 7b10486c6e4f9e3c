// Reads the traces that a job has left (docs/formats/trace.md), line by line.
//
// The contents are not trusted: a line that is broken or too long is counted and left out, the
// memory for events and steps is bounded, and no link is followed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace holdfast::apps::timeline {

constexpr std::size_t kLongestLine = 65536;
constexpr std::size_t kLongestWord = 200;      // Longer texts in events are cut off.
constexpr std::size_t kMostEvents = 500'000;   // In one file, without the steps.
constexpr std::size_t kMostSteps = 4'000'000;  // In one file.
constexpr std::size_t kMostFiles = 4096;
// Times beyond this (100 years since the host's start) are invalid. So sums and differences of
// times do not overflow.
constexpr std::int64_t kLatest = 100LL * 366 * 24 * 3600 * 1'000'000'000;

enum class Writer : std::uint8_t { kAgent, kScheduler, kWorker };

// An event other than a step. Fields that the line does not have are 0 or empty; `rank` is -1.
struct Event {
  std::int64_t t_ns = 0;
  std::string name;
  std::int64_t rank = -1;
  std::uint64_t generation = 0;
  std::uint64_t version = 0;
  std::int64_t detected_ns = 0;
  std::int64_t process = 0;
  std::int64_t child = 0;
  std::int64_t exit_code = 0;
  std::string role;
  std::string node;
  std::string text;  // `text`, `how`, `reason` or `job`, whichever there is.
};

struct Step {
  std::int64_t t_ns = 0;
  std::uint32_t step = 0;
  std::int32_t rank = -1;
};

// The trace of one process, in the order of time.
struct File {
  Writer writer = Writer::kWorker;
  std::string host;
  std::int64_t pid = 0;
  std::string boot;                // Names the start of the host from which the times count.
  std::int64_t wall_ahead_ns = 0;  // The wall clock minus the clock of the times.
  std::vector<Event> events;
  std::vector<Step> steps;
  std::size_t broken = 0;    // How many lines were broken.
  std::size_t left_out = 0;  // How many events were beyond the bounds.

  [[nodiscard]] bool empty() const { return events.empty() && steps.empty(); }
  [[nodiscard]] std::int64_t first_ns() const;
  [[nodiscard]] std::int64_t last_ns() const;
};

// Takes the bytes of a file, in pieces of any size.
class LineReader {
 public:
  explicit LineReader(File& file) : file_(file) {}
  void feed(std::string_view bytes);
  void end();  // A last line without a newline counts as broken: its writer may have been killed.

 private:
  void line(std::string_view text);
  void clock(std::string_view text);
  File& file_;
  std::string begun_;
  bool too_long_ = false;  // The line is too long: skip all up to its end.
};

// Reads the writer, the host and the pid from a name such as "worker-4711.jsonl". False: it is no
// trace.
bool parse_name(std::string_view name, File& file);

struct Traces {
  std::vector<File> files;              // The files of the newest run.
  std::vector<std::string> complaints;  // Sentences for the user.
};

// Error: there are no traces, or the folder can not be read.
Result<Traces> read_traces(const std::string& folder);

// Keeps the files of the newest run: going back from the last file, those whose times overlap.
// Returns how many files it has removed.
std::size_t keep_newest_run(std::vector<File>& files);

}  // namespace holdfast::apps::timeline
