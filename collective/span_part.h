// SpanPart: a Group whose ranks are on several hosts. Within a host it uses shared memory, like
// HostPart; between hosts it uses links.
//
// Every operation begins with a meeting (SpanMeeting). The ranks of a host write their requests,
// and the data of a small operation, into the host's segment. The host's first rank, its leader,
// exchanges them with the other leaders: in round k each sends all it has to the host 2^k further
// on. Then the leader writes the verdict into the segment for its mates, the other ranks of its
// host. A small operation needs no more: every rank reduces all rows for itself.
//
// A large operation goes on in lanes (SpanMap, Lane). The ranks of a lane pass a partial sum from
// run to run of ranks, always in rank order, so that the bits are those of one host. The result
// comes back the same way. Pieces follow each other closely, so all links and cores are busy.
//
// Every failure stops all ranks of the group (SpanStop).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "collective/gate.h"
#include "collective/group.h"
#include "collective/lane.h"
#include "collective/pumps.h"
#include "collective/registered_rows.h"
#include "collective/request.h"
#include "collective/segment.h"
#include "collective/span_map.h"
#include "collective/span_meeting.h"
#include "collective/span_stop.h"

namespace holdfast::collective {

// Contracts: Group.
class SpanPart final : public Group {
 public:
  static Result<std::unique_ptr<Group>> join(const Options& options, const std::stop_token& cancel);
  ~SpanPart() override { leave(); }

  Outcome all_reduce(Numbers to, const std::byte* from, Op op) override;
  Outcome broadcast(std::span<std::byte> bytes, int root) override;
  Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  Outcome barrier() override { return meet({.kind = Kind::kBarrier}, {}); }
  void abort() override { stop_.abort(); }
  void leave() override;
  [[nodiscard]] bool aborted() const override { return stop_.aborted(); }
  [[nodiscard]] std::string why() const override;
  [[nodiscard]] int rank() const override { return map_.rank(); }
  [[nodiscard]] int world_size() const override { return map_.size(); }
  [[nodiscard]] std::span<std::byte> registered() const override { return registered_.own; }

 private:
  SpanPart(const Options& options, SpanMap map, std::unique_ptr<Segment> segment,
           RegisteredRows registered, SpanStop::Joining joining);
  Status link(const Options& options, const std::stop_token& cancel);
  Status meet_first(const Options& options);
  [[nodiscard]] Error not_formed(const Options& options) const;
  [[nodiscard]] Gate& gate() const { return segment_->gate(); }

  Outcome arrive_and_wait();
  Outcome meet(Request request, std::span<const std::byte> shown);
  Outcome end_with(const Verdict& verdict);
  Outcome fail(Passage passage);
  Outcome lost();

  Outcome reduce_by_windows(const Numbers& to, const std::byte* from, Chain::Terms& terms);
  Outcome flood(int root, std::byte* own, std::size_t bytes);

  // Each knows only those declared before it.
  const SpanMap map_;
  const std::unique_ptr<Segment> segment_;
  const RegisteredRows registered_;  // The rows of this host's ranks.
  SpanStop stop_;
  SpanMeeting meeting_;
  Lane lane_;

  WaitPolicy wait_policy_;
  std::uint64_t barriers_ = 1;  // Barriers passed at the host's gate; joining was the first.
  std::uint64_t operations_ = ~std::uint64_t{0};  // The newest one's number; joining is number 0.
  const std::shared_ptr<std::atomic<std::uint64_t>> come_to_;  // Options::come_to
  Request current_;
  bool is_member_ = false;     // Has joined, and has not left.
  bool looks_around_ = false;  // While waiting for mates, look whether other hosts go on.
  std::vector<const std::byte*> rows_;
  Outcome final_ = Outcome::kDone;  // The first outcome that was not kDone.
  mutable std::mutex mutex_;        // Guards why_.
  std::string why_;
};

}  // namespace holdfast::collective
