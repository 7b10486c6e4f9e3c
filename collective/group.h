// Group: the ranks of one generation, and what they do together.
//
// Every rank calls every operation, in the same order. An operation returns an Outcome and never
// throws. It waits no longer than the slowest rank takes to come, or until abort(). Operations have
// no timeouts: whoever finds a rank dead or hung calls abort().
//
// Commit rule, on which the recovery protocol rests. Arrivals and the abort flag are one word in
// shared memory, and abort freezes it: no arrival counts after it. An operation is complete when
// the last arrival at its last barrier was counted before the freeze, whoever notices what first.
// So for each operation, all ranks that return from it agree: either every one of them returns
// kDone (and then every rank has contributed), or none does. A rank that meets an aborted group
// does not arrive.
//
// Of ranks on several hosts, less holds: an operation ends on each host for itself. If any rank
// returns kDone, then every rank had come to the operation, with the same request, and had shown
// what the result is made of. But ranks of other hosts may return kAborted from the same operation,
// if an abort or the end of a link reached them before the last bytes did. So whoever acts on kDone
// may rely on the others' arrival, and not on their kDone. Ranks of one host still agree.
//
// Every outcome but kDone is final: all later calls on this Group give it too (or kAborted, once
// somebody aborts). The way on is a new Group of a higher generation; a generation forms once.
//
// A reduction is always ((r0 op r1) op r2) op ... in rank order, for each element alike. So its
// bits are the same in all ranks, whatever the size, the alignment, the path and the timing.
//
// Of which kind a Group is depends on where its ranks lie: HostPart or SpanPart.
//
// Threads: one thread at a time calls operations. abort(), aborted() and why() may be called by any
// thread at any time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "collective/links.h"
#include "collective/numbers.h"
#include "collective/outcome.h"
#include "collective/regions.h"

namespace holdfast::collective {

// Memory that is the same range of one file per rank (its arena). All ranks map it, so that sums
// are written straight into every rank's buffer.
struct Registered {
  std::vector<std::string> files;  // One path per rank; own one too.
  std::uint64_t offset = 0;        // In bytes from the file's start; any multiple of 8.
  std::uint64_t bytes = 0;         // 0: there is none.
  // Where this process has its own range mapped already (the arena's address of it). If null, the
  // Group maps it; registered() says where.
  std::byte* memory = nullptr;
};

class Group {
 public:
  static constexpr int kMaxRanks = 10'000;

  struct Options {
    std::string directory;         // The job's directory on a tmpfs; same in all ranks.
    std::uint64_t generation = 0;  // Never used twice within a run.
    std::uint64_t run_id = 0;      // Tells this run's files from those of an earlier one.
    int rank = 0;
    int world_size = 1;  // 1 .. kMaxRanks
    Registered registered;
    // Memory that comes and goes while the Group lives. all_reduce() copies nothing where its
    // numbers lie in such memory on all ranks. May differ between ranks, or be null.
    std::shared_ptr<const Regions> regions;
    // Of each rank's window, through which it shows the others what lies in no memory of theirs.
    // The same in all ranks; at least 16 KiB. Reductions of two ranks use up to 256 KiB of it, so
    // that all stays in the cores' second-level caches. Everything else uses the whole window.
    std::size_t window_bytes = std::size_t{1} << 20;
    std::chrono::milliseconds join_timeout{60'000};  // How long join() waits for the others.
    // How long to wait for room in a full directory. What a killed process held comes back once the
    // kernel has torn it down.
    std::chrono::milliseconds room_timeout{1000};
    // Where the ranks of this group lie. If on several hosts, `directory` is each host's own.
    Layout layout;
    std::uint64_t agreed = 0;       // A number more that must be the same in all ranks.
    std::string group;              // Its name, for Links; "": the world.
    std::vector<Rank> world_ranks;  // By rank of this group; empty: the same numbers.
  };

  // Of ranks on several hosts, each host makes what follows for its own; then the hosts are linked,
  // and join() returns when all have met. Also an error (kUser): a layout that does not fit.
  //
  // Makes or opens the segment file <directory>/group-<generation>-<run id> and waits until every
  // rank has joined. One rank publishes the file whole, and it is unlinked when all are there. A
  // file of another run is never opened. Errors: wrong options (kUser); ranks that disagree about
  // the options, or a rank that joins twice (kPeer); a file that can not be mapped, `cancel`,
  // another rank's failure to join, and a timeout, which names the missing ranks (kWorld). A rank
  // that gives up ends the forming for all: come back with a higher generation.
  static Result<std::unique_ptr<Group>> join(const Options& options, std::stop_token cancel = {});

  virtual ~Group() = default;  // Leaves.
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  // This rank's registered memory, at Registered::memory if that was given.
  [[nodiscard]] virtual std::span<std::byte> registered() const = 0;

  // Reduces over all ranks, in place, or into `to` out of as many numbers of that type at `from`,
  // which stay as they are and do not overlap `to`. Unless kDone, the contents of `to` are
  // undefined, and other ranks may go on writing there until they have returned too: a step is
  // replayed from inputs kept elsewhere, when the next generation has formed. Other memory is
  // untouched.
  //
  // If `to` lies in registered(), it has to lie at the same offset there in all ranks. Nothing is
  // copied, but that three and more ranks reduce a few bytes (48 KiB, all ranks' together) through
  // their windows.
  //
  // Any other memory is copied through the ranks' windows, piece by piece. Each rank may choose for
  // itself whether it reduces in place; `from` is cheaper than a copy and a reduction in place.
  // From 4 MiB on, a sum of other numbers is written past the caches if `to` lies at a multiple of
  // 16.
  //
  // Nothing is copied if `to` lies in one of Options::regions on every rank, whichever and
  // wherever. The first reduction that names a region maps it, which takes two more barriers. If a
  // rank can not map it, reductions of that region are copied. If a rank's memory is in no region,
  // all copy, which takes one more barrier.
  Outcome all_reduce(Numbers numbers, Op op = Op::kSum) {
    return all_reduce(numbers, numbers.data, op);
  }
  virtual Outcome all_reduce(Numbers to, const std::byte* from, Op op = Op::kSum) = 0;
  // `bytes` of rank `root` appear in all ranks. Unless kDone, undefined in the other ranks.
  virtual Outcome broadcast(std::span<std::byte> bytes, int root) = 0;
  // `all` becomes rank 0's `mine`, then rank 1's, ...; as many bytes from each; all.size() must be
  // mine.size() * world_size(). Unless kDone, the contents of `all` are undefined.
  virtual Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // kDone: every rank has called it.
  virtual Outcome barrier() = 0;

  // Every waiter of every rank returns kAborted, and so does every later call. Does not wait. May
  // be called again. An operation that was complete before stays kDone.
  // Other hosts' ranks see it by the ends of links, which the first rank of this host holds: at
  // once if that is this rank, or is in an operation; else when it begins its next one. So whoever
  // knows of a failure tells all hosts' processes, and each calls abort().
  virtual void abort() = 0;
  [[nodiscard]] virtual bool aborted() const = 0;

  // Says that this rank will begin no more operations. Others who wait for this rank get kLeft.
  // Idempotent; the destructor does it too.
  virtual void leave() = 0;

  // After kLeft or kMismatch: one sentence that names the ranks and what each asked for (or for
  // what there was no room). Else "".
  [[nodiscard]] virtual std::string why() const = 0;

 protected:
  Group() = default;
};

}  // namespace holdfast::collective
