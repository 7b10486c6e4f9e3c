// Member: one rank's side of the operations, each done in the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "collective/group.h"
#include "collective/mapping.h"
#include "collective/request.h"
#include "collective/segment.h"

namespace holdfast::collective {

// Bytes [begin, end).
struct Range {
  std::size_t begin;
  std::size_t end;
};

// One thread at a time, but for abort(), aborted() and why(). Contracts: Group.
class Member {
 public:
  static Result<std::unique_ptr<Member>> join(const Group::Options& options,
                                              const std::stop_token& cancel);

  Outcome all_reduce(Numbers numbers, Op op);
  Outcome all_reduce_staged(Numbers to, const std::byte* from, Op op);
  Outcome all_reduce_into(Numbers to, const std::byte* from, Op op);
  Outcome broadcast(std::span<std::byte> bytes, int root);
  Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  Outcome barrier();
  void abort() { segment_->gate().abort(); }
  [[nodiscard]] bool aborted() const { return segment_->gate().aborted(); }
  void leave();
  [[nodiscard]] std::string why() const;

  [[nodiscard]] int rank() const { return segment_->rank(); }
  [[nodiscard]] int world_size() const { return segment_->world_size(); }
  [[nodiscard]] std::span<std::byte> registered() const { return registered_; }

 private:
  // What of a staged sum is made at a time: from where, to where it goes, how, and, if this rank
  // sums all of it, what it will show next (or null).
  struct Piece {
    Numbers to;
    const std::byte* from;
    Op op = Op::kSum;
    bool past_caches = false;
    const std::byte* soon = nullptr;
  };
  Member() = default;
  Status map_regions(const Group::Options& options);
  Outcome begin(Request request);
  Outcome pass();
  Fault have_room(std::size_t bytes);
  Outcome fail(Passage passage);
  bool take(int owner, const Range& slice, std::uint64_t leave, Range& block);
  void show(const Piece& piece, Range unread);
  void sum_part(const Piece& piece, Range part, std::byte* to, bool past_caches);
  void fetch(const Piece& piece, int owner, Range part);
  Outcome reduce_own(const Piece& piece);
  Outcome sum_all(const Piece& piece);
  Outcome sum_slice(const Piece& piece);
  Outcome stage(const Numbers& to, const std::byte* from, Op op, bool begun);
  Outcome sum_in_place_of_all(const Numbers& numbers, Op op);
  // What follows is in member_regions.cc: sums in memory that each rank has registered for itself.
  struct Introduced {  // A region of some rank, as all ranks know it.
    RegionId id = 0;
    bool usable = false;               // All ranks have mapped it.
    std::shared_ptr<Mapping> mapping;  // Null for this rank's own.
  };
  Outcome all_reduce_placed(const Numbers& to, const std::byte* from, Op op, Place place);
  Outcome introduce();
  [[nodiscard]] const Introduced* introduced(int rank, RegionId id) const;
  [[nodiscard]] bool is_any_placed() const;
  [[nodiscard]] std::uint64_t registered_offset(const std::byte* data, std::size_t bytes) const;

  std::unique_ptr<Segment> segment_;
  std::shared_ptr<const Regions> own_regions_;
  std::vector<std::vector<Introduced>> introduced_;  // By rank; the same regions on all ranks.
  std::vector<std::shared_ptr<Mapping>> mappings_;
  std::vector<std::byte*> regions_;  // Every rank's registered memory.
  // One entry per rank, for the operation that is under way.
  std::vector<std::byte*> rows_;
  std::vector<std::byte*> block_rows_;
  std::vector<const std::byte*> piece_rows_;
  std::vector<Place> places_;
  std::span<std::byte> registered_;
  std::uint64_t barriers_ = 1;  // Passed so far, the joining among them.
  Courtesy courtesy_;
  std::uint64_t operations_ = 0;  // Begun so far.
  std::uint64_t pieces_ = 0;      // How often the staging half was changed.
  Request current_;
  Outcome final_ = Outcome::kDone;  // The first other outcome, once it has come.
  mutable std::mutex mutex_;        // Of why_.
  std::string why_;
};

}  // namespace holdfast::collective
