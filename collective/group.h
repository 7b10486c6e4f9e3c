// Group: some ranks in one generation, and the collective operations among them.
//
// Every rank calls every operation, in the same order. An operation returns an Outcome and never
// throws. It waits no longer than the slowest rank takes to come, or until abort(). Operations have
// no timeouts: whoever finds a rank dead or hung calls abort().
//
// Commit rule, on which the recovery protocol rests. Arrivals and the abort flag are one word in
// shared memory, and abort freezes it: no arrival counts after it. An operation is complete when
// the last arrival at its last barrier was counted before the freeze.
// So for each operation, all ranks that return from it agree: either every one of them returns
// kDone (and then every rank has contributed), or none does. A rank that meets an aborted group
// does not arrive.
//
// With ranks on several hosts the guarantee is weaker, because an operation ends on each host by
// itself. If any rank returns kDone, then every rank had called the operation, with the same
// request, and had given its data. But ranks of other hosts may return kAborted from the same
// operation, if an abort or the end of a link reached them before the last bytes did. So a rank
// that got kDone may rely on the others' arrival, but not on their kDone. Ranks of one host still
// agree.
//
// Every outcome but kDone is final: all later calls on this Group return it, too (or kAborted, once
// somebody aborts). Go on with a new Group of a higher generation; a generation forms only once.
//
// A reduction is always ((r0 op r1) op r2) op ... in rank order, for each element alike. So its
// bits are the same in all ranks, whatever the size, the alignment, the path and the timing.
//
// Two classes implement it: HostPart if all ranks are on one host, SpanPart if on several.
//
// Threads: one thread at a time calls operations. abort(), aborted() and why() may be called by any
// thread at any time.
#pragma once

#include <atomic>
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

// Registered memory: the same range of one file per rank (its arena). All ranks of a host map all
// of these, so that sums are written straight into every rank's buffer.
struct Registered {
  std::vector<std::string> files;  // One path per rank, this rank's own, too.
  std::uint64_t offset = 0;        // In bytes from the file's start; any multiple of 8.
  std::uint64_t bytes = 0;         // 0: there is none.
  // The address at which this process has its own range mapped already (by its arena). If null, the
  // Group maps it; registered() gives the address.
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
    // The size of each rank's window: shared memory through which it passes the others data that
    // they have not mapped. The same in all ranks; at least 16 KiB. Reductions of two ranks use up
    // to 256 KiB of it, so that all stays in the cores' second-level caches. Everything else uses
    // the whole window.
    std::size_t window_bytes = std::size_t{1} << 20;
    std::chrono::milliseconds join_timeout{60'000};  // How long join() waits for the others.
    // How long to wait for room if `directory` is full. The kernel frees the memory of a killed
    // process only a moment later.
    std::chrono::milliseconds room_timeout{1000};
    // Where the ranks of this group lie. If on several hosts, `directory` is each host's own.
    Layout layout;
    std::uint64_t agreed = 0;  // Over several hosts: checked to be the same in all ranks.
    std::string group;         // The group's name, for Links; "": the world.
    // Is set to the number of each operation when this rank comes to it. Null: nobody looks.
    std::shared_ptr<std::atomic<std::uint64_t>> come_to = nullptr;
    std::vector<Rank> world_ranks;  // By rank of this group: its rank in the world. Empty: equal.
  };

  // Makes or opens the segment file <directory>/group-<generation>-<run id> and waits until every
  // rank has joined. One rank publishes the complete file, and it is unlinked when all are there. A
  // file of another run is never opened. With ranks on several hosts, each host makes a file for
  // its own ranks; then the hosts are linked, and join() returns when all ranks have met.
  //
  // Errors: wrong options, such as a layout that does not fit (kUser); ranks that disagree about
  // the options, or a rank that joins twice (kPeer); a file that can not be mapped, `cancel`,
  // another rank's failure to join, and a timeout, which names the missing ranks (kWorld). A rank
  // that gives up ends the forming for all: they must join a higher generation.
  static Result<std::unique_ptr<Group>> join(const Options& options, std::stop_token cancel = {});

  virtual ~Group() = default;  // Leaves.
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  // This rank's registered memory, at Registered::memory if that was given.
  [[nodiscard]] virtual std::span<std::byte> registered() const = 0;

  // Reduces over all ranks: in place, or from `from` (as many numbers of the same type, which keep
  // their values and do not overlap `to`) into `to`. Unless kDone, the contents of `to` are
  // undefined, and other ranks may go on writing there until their calls have returned, too. So a
  // step must be replayed from inputs kept elsewhere, once the next generation has formed. Other
  // memory is untouched.
  //
  // If `to` lies in registered(), it has to lie at the same offset there in all ranks. Nothing is
  // copied then, with one exception: three and more ranks pass small data (up to 48 KiB over all
  // ranks) through their windows.
  //
  // Any other memory is copied through the ranks' windows, piece by piece. Each rank may choose for
  // itself whether it reduces in place; `from` is cheaper than a copy and a reduction in place. A
  // sum with `from` of 4 MiB or more is written past the caches, if `to` lies at a multiple of 16.
  //
  // Nothing is copied either if on every rank `to` lies in some region of Options::regions. The
  // first reduction in a region maps it, which takes two more barriers. If a rank can not map it,
  // reductions in that region are copied. If a rank's memory is in no region, all ranks copy, which
  // takes one more barrier.
  Outcome all_reduce(Numbers numbers, Op op = Op::kSum) {
    return all_reduce(numbers, numbers.data, op);
  }
  virtual Outcome all_reduce(Numbers to, const std::byte* from, Op op = Op::kSum) = 0;
  // Copies `bytes` of rank `root` to all ranks. Unless kDone, `bytes` of the others are undefined.
  virtual Outcome broadcast(std::span<std::byte> bytes, int root) = 0;
  // Fills `all` with rank 0's `mine`, then rank 1's, ...; all ranks' `mine` have the same size, and
  // all.size() must be mine.size() * world_size(). Unless kDone, the contents of `all` are
  // undefined.
  virtual Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // kDone: every rank has called it.
  virtual Outcome barrier() = 0;

  // Ends the group: every waiter of every rank returns kAborted, and so does every later call. Does
  // not block. May be called again. An operation that was complete before stays kDone.
  // Ranks of other hosts notice it when the links end that the first rank of this host holds. That
  // is at once if this is the first rank, or if that one is in an operation; else when it begins
  // its next one. So whoever knows of a failure should tell the processes of all hosts, and each
  // should call abort().
  virtual void abort() = 0;
  [[nodiscard]] virtual bool aborted() const = 0;

  // Says that this rank will begin no more operations. Ranks that wait for this one get kLeft.
  // Idempotent; the destructor does it too.
  virtual void leave() = 0;

  // After kLeft: one sentence that names the ranks that have left, and what this rank asked for.
  // After kMismatch: one that says in what the ranks differ, or whose data found no room. Else "".
  [[nodiscard]] virtual std::string why() const = 0;

 protected:
  Group() = default;
};

}  // namespace holdfast::collective
