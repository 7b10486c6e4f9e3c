// Lifeline: tells of a process's death within a tenth of a millisecond, however large its memory
// is. It is a robust mutex in a small shared file. The process holds it for life, and a watcher
// waits for it.
//
// The kernel releases robust mutexes before it frees the process's memory. A closed connection or a
// pidfd tells only afterwards, 28 ms per GB later.
//
// A lifeline's states, each final but the first two:
//   unheld    prepared, nobody holds it yet      → the watcher waits on
//   held      the holder lives                   → the watcher waits on
//   released  the holder let go (~Lifeline)      → Ending::kReleased
//   died      the holder's thread ended without  → Ending::kDied
// A lifeline serves one holder once; the next one has a new file (prepare, or hold, replaces it).
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/ids.h"
#include "base/result.h"
#include "base/whereabouts.h"
#include "os/mapping.h"

namespace holdfast::os {

// Puts an unheld lifeline at `path` (0600), in place of what was there. The agent does so before it
// starts the worker. So its watcher can not take a predecessor's lifeline for the new one.
[[nodiscard]] Status prepare_lifeline(const std::string& path);

class Lifeline {
 public:
  // Holds the lifeline at `path`: the prepared one, or a new one if that is missing or used. Call
  // it in a thread that lives as long as the process, because the end of that thread is the death
  // that is reported. A thread that sleeps dies soonest: one that waits for a processor has to get
  // it first. A forked child does not hold the lifeline.
  [[nodiscard]] static Result<Lifeline> hold(const std::string& path);
  Lifeline(Lifeline&&) noexcept = default;
  // Records that the holder has made this step. A watcher can read that after the holder's end,
  // too.
  void note(Version version) const;
  // Records that the holder, a spare, waits for its place, and can go on with it at once.
  void note_ready() const;
  // Records that the job has ended, well or not. A watcher can read that likewise.
  void note_end(bool well) const;
  ~Lifeline();  // Releases it: at once in the thread that called hold(), within 200 ms in another.

 private:
  explicit Lifeline(Mapping page) : page_(std::move(page)) {}
  Mapping page_;  // Empty: it has moved to another Lifeline.
  std::thread::id holder_ = std::this_thread::get_id();
  pid_t process_ = ::getpid();
};

// Where the holder writes its whereabouts. Any process may read them; a reader may find some of
// them newer than others. One thread at a time writes a member, but for the last two.
struct Board {
  std::atomic<Generation> generation;
  std::atomic<std::uint64_t> operations;
  std::atomic<Version> version;
  std::atomic<std::uint64_t> steps;
  std::atomic<Doing> doing;
  std::atomic<std::uint64_t> team_operations;  // Any thread.
  std::atomic<std::uint64_t> team_waits;       // Threads that wait for such a one. Any thread.

  // From now on the rank trains in this generation, whose operations are counted anew.
  void enter(Generation entered) {
    if (generation.load(std::memory_order_relaxed) == entered) return;
    operations.store(0, std::memory_order_relaxed);
    generation.store(entered, std::memory_order_relaxed);
  }
};
// The board of the lifeline at `path`; it may outlive the Lifeline. Where there is no lifeline: one
// that nobody reads.
[[nodiscard]] std::shared_ptr<Board> lifeline_board(const std::string& path);
[[nodiscard]] Whereabouts whereabouts_on(const Board& board);

// The process that holds the lifeline at `path`, by its number in its own PID namespace. The number
// stays when the process dies. 0: nobody has held it yet, or there is no lifeline.
[[nodiscard]] std::int32_t lifeline_holder(const std::string& path);

// The last step that its holder has noted. kNoVersion: none, or there is no lifeline.
[[nodiscard]] Version lifeline_version(const std::string& path);

// Whether its holder has noted that it is ready.
[[nodiscard]] bool lifeline_ready(const std::string& path);

// Whether the job has ended well, if its holder has noted that it has ended.
[[nodiscard]] std::optional<bool> lifeline_end(const std::string& path);

enum class Ending : std::uint8_t { kDied, kReleased, kCancelled };

// Blocks until the lifeline that is at `path` now ends, or for at most 200 ms after `cancel` is
// true. There may be any number of watchers, in any process. Errors: there is no lifeline at
// `path`, or it is none. A process that dies before it holds its lifeline is not seen here. The
// watcher's owner learns of it by its pidfd, and cancels.
[[nodiscard]] Result<Ending> wait_for_death(const std::string& path,
                                            const std::atomic<bool>& cancel);

}  // namespace holdfast::os
