// HostPart: a Group whose ranks are all on one host, over shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "collective/group.h"
#include "collective/registered_rows.h"
#include "collective/request.h"
#include "collective/segment.h"
#include "collective/shared_mapping.h"

namespace holdfast::collective {

// Bytes [begin, end).
struct Range {
  std::size_t begin;
  std::size_t end;
};

// Contracts: Group.
class HostPart final : public Group {
 public:
  static Result<std::unique_ptr<Group>> join(const Options& options, const std::stop_token& cancel);
  ~HostPart() override { leave(); }

  Outcome all_reduce(Numbers to, const std::byte* from, Op op) override;
  Outcome broadcast(std::span<std::byte> bytes, int root) override;
  Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  Outcome barrier() override { return begin({.kind = Kind::kBarrier}); }
  void abort() override { segment_->gate().abort(); }
  [[nodiscard]] bool aborted() const override { return segment_->gate().aborted(); }
  void leave() override {
    if (std::exchange(is_member_, false)) segment_->leave();
  }
  [[nodiscard]] std::string why() const override;

  [[nodiscard]] int rank() const override { return segment_->rank(); }
  [[nodiscard]] int world_size() const override { return segment_->world_size(); }
  [[nodiscard]] std::span<std::byte> registered() const override { return registered_.own; }

 private:
  // A part of the numbers that is reduced through the windows at a time. `soon`: the memory that
  // this rank will show next, to be prefetched, if it reduces all of the piece; else null.
  struct Piece {
    Numbers to;
    const std::byte* from;
    Op op = Op::kSum;
    bool past_caches = false;
    const std::byte* soon = nullptr;
  };
  HostPart() = default;
  Outcome begin(Request request);
  Outcome arrive_and_wait();
  Fault have_room(std::size_t bytes);
  Outcome fail(Passage passage);
  bool take(int owner, const Range& share, std::uint64_t leave, Range& block);
  void show(const Piece& piece, Range unread);
  void reduce_range(const Piece& piece, Range range, std::byte* to, bool past_caches);
  void fetch(const Piece& piece, int owner, Range range);
  Outcome all_reduce_registered(const Numbers& numbers, std::uint64_t offset, Op op);
  Outcome reduce_own(const Piece& piece);
  void reduce_whole(const Piece& piece);
  Outcome reduce_share(const Piece& piece);
  Outcome reduce_by_windows(const Numbers& to, const std::byte* from, Op op, bool begun);
  Outcome reduce_everywhere(const Numbers& numbers, Op op);
  // What follows is in host_part_regions.cc: reductions in memory that each rank has registered
  // for itself.
  struct Introduced {  // A region of some rank, as all ranks know it.
    RegionId id = 0;
    bool usable = false;    // All ranks have mapped it.
    SharedMapping mapping;  // Null for this rank's own.
  };
  Outcome all_reduce_in_regions(const Numbers& to, const std::byte* from, Op op,
                                RegionAddress address);
  Outcome introduce();
  [[nodiscard]] const Introduced* introduced(int rank, RegionId id) const;
  [[nodiscard]] bool is_any_in_region() const;

  std::unique_ptr<Segment> segment_;
  std::shared_ptr<const Regions> own_regions_;
  std::vector<std::vector<Introduced>> introduced_;  // By rank; the same regions on all ranks.
  RegisteredRows registered_;
  // One entry per rank, for the operation that is under way.
  std::vector<std::byte*> rows_;
  std::vector<std::byte*> block_rows_;
  std::vector<const std::byte*> piece_rows_;
  std::vector<RegionAddress> addresses_;
  bool is_member_ = false;      // Has joined, and has not left.
  std::uint64_t barriers_ = 1;  // Barriers passed so far; joining was the first.
  WaitPolicy wait_policy_;
  std::uint64_t operations_ = 0;                         // Operations begun so far.
  std::shared_ptr<std::atomic<std::uint64_t>> come_to_;  // Options::come_to
  std::uint64_t pieces_ = 0;  // Modulo 2: which half of the window is used now.
  Request current_;
  Outcome final_ = Outcome::kDone;  // The first outcome that was not kDone.
  mutable std::mutex mutex_;        // Guards why_.
  std::string why_;
};

}  // namespace holdfast::collective
