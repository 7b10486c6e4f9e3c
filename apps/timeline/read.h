// Reads the traces that a job has left (docs/formats/trace.md), line by line.
//
// What stands there is not trusted: a line that is broken or too long is counted and left out, what
// is kept has bounds, and no link is followed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace holdfast::apps::timeline {

constexpr std::size_t kLongestLine = 65536;
constexpr std::size_t kLongestWord = 200;      // Of a text in an event; the rest is cut off.
constexpr std::size_t kMostEvents = 500'000;   // Of a file, without its steps.
constexpr std::size_t kMostSteps = 4'000'000;  // Of a file.
constexpr std::size_t kMostFiles = 4096;
// A hundred years since the host's start, in the clock of the traces: more is no time. So sums and
// differences of times do not overflow.
constexpr std::int64_t kLatest = 100LL * 366 * 24 * 3600 * 1'000'000'000;

enum class Writer : std::uint8_t { kAgent, kScheduler, kWorker };

// An event other than a step. Fields that it does not have are 0 or empty; `rank` is -1.
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

// What one process has written, in the order of time.
struct File {
  Writer writer = Writer::kWorker;
  std::string host;
  std::int64_t pid = 0;
  std::string boot;  // Names the clock of its times: they count from this start of its host.
  std::int64_t wall_ahead_ns = 0;  // So far ahead of that clock is the wall clock.
  std::vector<Event> events;
  std::vector<Step> steps;
  std::size_t broken = 0;    // Lines.
  std::size_t left_out = 0;  // Events beyond the bounds.

  [[nodiscard]] bool empty() const { return events.empty() && steps.empty(); }
  [[nodiscard]] std::int64_t first_ns() const;
  [[nodiscard]] std::int64_t last_ns() const;
};

// Takes the bytes of a file, in pieces of any size.
class LineReader {
 public:
  explicit LineReader(File& file) : file_(file) {}
  void feed(std::string_view bytes);
  void end();  // A last line without its end is broken: its writer was killed, or still writes.

 private:
  void line(std::string_view text);
  void clock(std::string_view text);
  File& file_;
  std::string begun_;
  bool too_long_ = false;  // What comes until the next line's end belongs to no line.
};

// "worker-4711.jsonl": whose file this is. False: it is no trace.
bool parse_name(std::string_view name, File& file);

struct Traces {
  std::vector<File> files;              // Those of one run: the newest.
  std::vector<std::string> complaints;  // Whole sentences, for people.
};

// Error: there are no traces, or the folder can not be read.
Result<Traces> read_traces(const std::string& folder);

// Keeps the files of the newest run: those whose times overlap, up to the last. Returns how many
// files it has left out.
std::size_t keep_newest_run(std::vector<File>& files);

}  // namespace holdfast::apps::timeline
