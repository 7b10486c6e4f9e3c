// State memory that outlives its process: one file in tmpfs per rank, updated so that a SIGKILL at
// any instruction leaves a file from which the next process gets exactly version n or n - 1.
//
// The order of calls in step n (version() is n - 1):
//   1. gradients() is filled by the backward pass and by the collective (peers may write into it
//      through a mapping of their own: path(), Layout::gradients_offset()).
//   2. stage(n, ...): what update n needs is laid down; the last store makes staged() n.
//   3. Outside: a barrier. If it completes anywhere, every rank has staged n.
//   4. update(threads): all parameters and moments, in place, with line undo; then version() is n.
// A void step is unstage()d. private_bytes(version()) is untouched, so a replay starts from there.
// A process that dies in 1-3 leaves version n - 1, and staged() tells whether n can still be
// finish()ed. A process that dies in 4 leaves version n, because open() finishes the update.
//
// Covers the death of the process, not of the host (docs/ARCHITECTURE.md, "Limits today").
// Thread-safety: one thread at a time per Arena; version() and staged() from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arena/layout.h"
#include "base/ids.h"
#include "base/result.h"
#include "os/lost_pages.h"
#include "os/shared_file.h"

namespace holdfast::arena {

// The hyper-parameters of one update; which of them count depends on Layout::optimizer.
struct UpdateArguments {
  double learning_rate = 0;
  double momentum = 0;      // kMomentum. Dampening 0, not Nesterov's.
  double beta1 = 0.9;       // kAdam, kAdamW
  double beta2 = 0.999;     // kAdam, kAdamW
  double epsilon = 1e-8;    // kAdam, kAdamW
  double weight_decay = 0;  // Added to the gradient (L2); kAdamW: decoupled.
  std::uint64_t update_count =
      1;                      // kAdam, kAdamW: this update's number for bias correction, from 1.
  double clip_norm = 0;       // Clips all gradients together to this norm; 0: no clipping.
  double gradient_scale = 1;  // The factor that clips this step's gradients; set by stage().
};

// The place in the data at which a version goes on. Kept for the caller, and not interpreted.
struct Position {
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;    // Steps done within the epoch.
  std::uint64_t samples = 0;  // Samples consumed by this rank.
  friend bool operator==(const Position&, const Position&) = default;
};

// A range of a rank's private bytes.
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Range&, const Range&) = default;
};
inline constexpr std::size_t kMostParts = 8;
struct Parts {
  std::uint64_t count = 0;
  Range ranges[kMostParts];

  // Whether the ranges lie within `bytes` bytes, ascend and do not overlap.
  [[nodiscard]] bool fit(std::uint64_t bytes) const;
  // Requires: fit().
  [[nodiscard]] std::span<const Range> all() const { return std::span(ranges).first(count); }
};

struct StagedStep {
  // Exactly Layout::private_bytes long. May be Arena::private_bytes(n) itself, filled in place.
  std::span<const std::byte> private_bytes;
  UpdateArguments arguments;
  Position position;  // After this step.
  // The ranges of private bytes that are in use, ascending, at most kMostParts; none: all are. The
  // arena keeps the other bytes as well, but they need not be copied to another host.
  std::span<const Range> used = {};
};

// When an arena's memory is taken.
enum class Memory : std::uint8_t {
  kAtOnce,  // All, when the file is made.
  kAsUsed,  // That of private bytes: when take() is called.
};

class Arena {
 public:
  // Maps the file at `path` and recovers it. Makes the file (0600) and missing directories (0700).
  // A file of another run, or one without a version, is replaced by a new file of zeros. A new file
  // is a new inode, so peers must map it anew. To make one takes 1-5 s a GB (huge pages, taken in
  // advance). To open an existing one takes less than 1 ms.
  // Requires: the process that had it open is dead or will never call update() again. Threads of a
  // dying process may run on for microseconds. open() waits up to 5 s for those that update.
  // Errors: kUser if the layout differs within the same run (names the first difference). kWorld if
  // the file is truncated or corrupt, if the file system has no room (names the directory and the
  // bytes), or if the former process still lives in the midst of an update.
  // `prepared`: becomes the new file, if one is made and the size is right. It has to hold zeros,
  // Layout::file_bytes() of them, on the same file system. May be null.
  [[nodiscard]] static Result<Arena> open(const std::string& path, const Layout& layout,
                                          std::uint64_t run_id,
                                          std::unique_ptr<os::Unnamed> prepared = nullptr,
                                          Memory memory = Memory::kAtOnce);
  // Opens an arena that holds another rank's private bytes (Layout::held_for()), of any size.
  // Error: the file holds nothing of this run.
  [[nodiscard]] static Result<Arena> open_held(const std::string& path, std::uint64_t run_id);

  // Opens an arena of a rank that a dead process has left, of any run. Error: there is none, or it
  // has no version.
  [[nodiscard]] static Result<Arena> open_left(const std::string& path);

  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  ~Arena();  // Unmaps; the file stays. The owner of the job's directory removes it.

  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] const Layout& layout() const;
  [[nodiscard]] std::uint64_t run_id() const;
  [[nodiscard]] bool fresh() const { return version() == kNoVersion; }
  [[nodiscard]] Version version() const;    // Committed; kNoVersion if fresh.
  [[nodiscard]] Version staged() const;     // version() or version() + 1; kNoVersion if fresh.
  [[nodiscard]] Position position() const;  // Of version(). Requires: not fresh.
  [[nodiscard]] bool has(Version v) const { return !fresh() && (v == version() || v == staged()); }

  // Views into the file, 128-byte aligned. They are valid as long as this Arena, or as long as
  // somebody holds memory().
  [[nodiscard]] std::span<float> parameter(std::size_t i);
  [[nodiscard]] std::span<float> moment(std::size_t k,
                                        std::size_t i);  // k < moment_count(optimizer)
  [[nodiscard]] std::span<float> gradient(std::size_t i);
  // Whole regions, Layout::region_floats() long; the padding in them is and must stay zero.
  [[nodiscard]] std::span<float> parameters();
  [[nodiscard]] std::span<float> moments(std::size_t k);
  [[nodiscard]] std::span<float> gradients();
  [[nodiscard]] std::shared_ptr<const void> memory() const;
  // The private bytes of version v (place v % 2). Those of version() are committed. Those of
  // version() + 1 may be filled before stage().
  [[nodiscard]] std::span<std::byte> private_bytes(Version v);
  // Opened kAsUsed: has the kernel take the memory of a range of private_bytes(v), before it is
  // written to for the first time; else that could end the process. Error: there is no room.
  [[nodiscard]] Status take(Version v, const Range& range);
  // Makes all private bytes zero.
  void clear_private();
  // The ranges of private_bytes(v) that are in use. Requires: has(v).
  [[nodiscard]] std::vector<Range> used(Version v) const;

  // What memory errors have taken, by offsets from the gradients on. It is written down in the
  // file, before a lost page holds zeros, so a successor finds it as well. (A lost page of the
  // file's head ends the process.)
  [[nodiscard]] const os::LossList& losses() const;
  // Forgets `count` losses, unless there are more by now.
  void clear_losses(std::uint64_t count);

  // Commits version v: 0, or that of a checkpoint. The caller has filled parameters, moments and
  // private_bytes(v). Requires: fresh. In a new arena the moments are zero. `used`: as in
  // StagedStep.
  void begin(Version v, const Position& position, std::span<const Range> used = {});
  void begin_version0(const Position& position) { begin(0, position); }
  // Makes the arena fresh, so that all of it may be overwritten (by a checkpoint, or by state from
  // afar). Then call begin(). The bytes stay, but until begin() a successor sees no version. Losses
  // so far are forgotten.
  void invalidate();

  // Requires: n == version() + 1, and the gradients are complete. May be called again for the same
  // n. A death within leaves n unstaged.
  void stage(Version n, const StagedStep& step);
  void unstage();  // Afterwards staged() == version().

  // Carries out the staged update on 1..16 threads (fewer if the state is small; the threads live
  // as long as this Arena). The bits do not depend on `threads`, nor on the caller's floating-point
  // mode. Requires: staged() == version() + 1. Afterwards version() == staged().
  void update(std::size_t threads);
  // For a staged version that a plan declares committed: update(1) if one is staged, else nothing.
  void finish();
  // For an arena that is held for another rank, which is at version v by now. If v == version(), a
  // staged step is void. If v == staged(), that step is committed.
  void settle(Version v);

  // A digest of parameters and moments, which are equal on all ranks of one version. Private bytes
  // are not in it. Reads the whole state. Meaningless while fresh.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  struct State;
  explicit Arena(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::arena
