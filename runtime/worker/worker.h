// Worker: a trainer's link to its job. A thread of its own talks to the scheduler and hands the
// member machine's wishes to the training thread, which never waits for it in a healthy step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/ids.h"
#include "base/result.h"
#include "config/settings.h"
#include "core/member/machine.h"
#include "io/trace.h"

namespace holdfast::runtime {

// This process's place in the job.
struct Identity {
  Rank rank = 0;
  std::int32_t world_size = 1;
  std::uint64_t run_id = 0;
  std::string directory;  // On tmpfs, the same for all ranks of a host: arenas and segments.
};

// One per process. Threads: everything is called by the training thread, unless said otherwise.
// An Error is final: the job is over, or this process has no place in it.
class Worker {
 public:
  // Does: holds the lifeline, and begins to connect and register (a spare does not: see
  // identity()). Call it in the main thread. Without MS_ROLE the process is a world of its own:
  // there is no scheduler, and its directory is removed at exit. Returns at once; a scheduler that
  // does not answer is reported by whoever first waits for it.
  [[nodiscard]] static Result<std::unique_ptr<Worker>> start(const config::Settings& settings);
  ~Worker();  // Hangs up and lets go of the lifeline. So does exit().
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Waits until the ranks are given. A spare waits here for its place first, and only then
  // registers; it exits quietly with code 0 if the job ends without needing it. Later calls return
  // the same at once. Errors: no scheduler within HOLDFAST_SCHEDULER_TIMEOUT; refused, and why.
  [[nodiscard]] Result<Identity> identity();

  [[nodiscard]] bool solo() const;  // A world of its own, without a scheduler.
  // The rank of a spare that was started for one, known from its start; kNoRank: of any other.
  [[nodiscard]] Rank bound_rank() const;
  void note_step(Version version) const;   // It is made: the agent is to know so after our end.
  [[nodiscard]] bool waits_spare() const;  // identity() would wait for a place to become free.
  [[nodiscard]] const config::Settings& settings() const;
  [[nodiscard]] const io::Trace& trace() const;

  // ---- For Session ------------------------------------------------------------------------------

  // What the machine wants of the training thread.
  using Order = std::variant<member::Mend, member::Go, member::Released>;

  // Hands an event to the machine. From any thread; nothing happens in a solo world.
  void post(member::Event event);

  // Waits for the machine's next order; nothing if `limit` has passed. Errors: the job is over
  // (why); the scheduler has been gone for longer than HOLDFAST_SCHEDULER_TIMEOUT.
  [[nodiscard]] Result<std::optional<Order>> next_order(Duration limit = config::kNever);

  // Called in the control thread, which must not be blocked, when the collectives of a generation
  // and of those before are to end. Null: no more; after the return the old one is not running.
  void on_abort(std::function<void(Generation)> handler);
  // Waits until the machine has said Abort for `generation` or a later one. Errors: those of
  // next_order(); `limit` has passed.
  [[nodiscard]] Status wait_for_abort(Generation generation, Duration limit);

  // Tells the scheduler that this rank's training has ended in good order, at this version
  // (kNoVersion: it never trained), and waits until that is on record, at most for
  // settings().scheduler_timeout; then it warns.
  // Nothing to do for a world of its own and for a spare without a place.
  [[nodiscard]] Status end(Version version);

  // Tells the scheduler that the job can not go on and waits until that is on record (5 s at most).
  // Returns the error that the caller shall give: `reason`, or why the job was over already.
  [[nodiscard]] Error fail(std::string reason);

 private:
  struct Control;
  explicit Worker(std::unique_ptr<Control> control);
  std::unique_ptr<Control> control_;
};

}  // namespace holdfast::runtime
