// SpanPart: a Group whose ranks are on several hosts. Within a host it uses shared memory, like
// HostPart; between hosts it uses links.
//
// Every operation begins with a meeting. The ranks of a host write their requests, and the data of
// a small operation, into the host's segment. The host's first rank, its leader, exchanges them
// with the other leaders: in round k each sends all it has to the host 2^k further on. Then the
// leader writes the verdict into the segment for its mates, the other ranks of its host. A small
// operation needs no more: every rank reduces all rows for itself.
//
// A large operation goes on in lanes (SpanMap). The ranks of a lane pass a partial sum from run to
// run of ranks, always in rank order, so that the bits are those of one host. The result comes back
// the same way. Pieces follow each other closely, so all links and cores are busy.
//
// Every failure cuts all links of this rank and aborts the host's gate. So all ranks stop: the
// mates notice it by the gate, other hosts by the links, and those hosts do the same in turn.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "collective/flow.h"
#include "collective/group.h"
#include "collective/pumps.h"
#include "collective/registered_rows.h"
#include "collective/request.h"
#include "collective/segment.h"
#include "collective/span_map.h"
#include "os/pool.h"

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
  void abort() override;
  void leave() override;
  [[nodiscard]] bool aborted() const override { return segment_->gate().aborted(); }
  [[nodiscard]] std::string why() const override;
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }
  [[nodiscard]] std::span<std::byte> registered() const override { return registered_.own; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  struct Joining {  // While join() is under way.
    Deadline deadline;
    std::stop_token cancel;
  };
  // What one host sends in a meeting, and where it lies in blocks_.
  struct Block {
    std::size_t at = 0;
    std::size_t end = 0;
    std::vector<Request> requests;  // One if all ranks of the host have the same; else by rank.
    bool same_options = true;
  };

  // What is received in one round: a frame, then its bytes. The frame may be read before the round
  // begins, by others_go_on().
  struct Incoming {
    Flow flow;
    Frame frame;
    bool begun = false;
    void expect_frame();
  };

  explicit SpanPart(const Group::Options& options);
  Status link(const Group::Options& options, const std::stop_token& cancel);
  Status meet_first(const Group::Options& options);
  [[nodiscard]] Error not_formed(const Group::Options& options) const;
  [[nodiscard]] Gate& gate() const { return segment_->gate(); }
  [[nodiscard]] bool has_mates() const { return map_.local_size() > 1; }
  void cut();

  // ---- meetings (span_meeting.cc)
  Outcome meet(Request request, std::span<const std::byte> shown);
  Outcome lead(std::span<const std::byte> shown, Verdict& verdict);
  void add_own_block(std::span<const std::byte> shown);
  Outcome exchange(std::size_t round, std::vector<int>& left);
  [[nodiscard]] bool accepts(const Frame& frame, std::size_t round) const;
  bool take_blocks(std::size_t round);
  bool take_block(std::size_t& at, std::size_t end, int host);
  bool take_left(std::vector<int>& left) const;
  [[nodiscard]] bool others_go_on();
  Verdict verdict_on_blocks();
  void place_data(std::byte* to);
  void send_left(std::size_t first_round, std::uint64_t sequence, const std::vector<int>& left);
  void tell_mates(const Verdict& verdict);
  [[nodiscard]] Verdict heard() const;
  Outcome end_with(const Verdict& verdict);

  Outcome arrive_and_wait();
  Outcome fail(Passage passage);
  Outcome lost();
  [[nodiscard]] bool must_stop() const;
  [[nodiscard]] bool drive(Pump& pump, std::vector<pollfd>& polled) const;

  [[nodiscard]] bool is_small(const Request& request) const;
  [[nodiscard]] std::size_t shown_bytes(const Request& request, int host) const;
  [[nodiscard]] std::size_t gathered_bytes(const Request& request) const;
  [[nodiscard]] Fault have_room(const Request& request, std::size_t large);
  [[nodiscard]] Pieces pieces(std::size_t total, std::size_t begin, std::size_t bytes) const;
  [[nodiscard]] bool is_worth_two_threads() const;
  Outcome reduce(const Chain::Terms& terms);
  Outcome reduce_by_windows(const Numbers& to, const std::byte* from, Chain::Terms& terms);
  Outcome flood(int root, std::byte* own, std::size_t bytes);

  const int rank_;
  const int world_size_;
  const SpanMap map_;
  const std::uint64_t identity_;  // A digest of the options that must be the same in all ranks.
  std::unique_ptr<Segment> segment_;
  RegisteredRows registered_;                 // The rows of this host's ranks.
  std::vector<std::unique_ptr<Link>> links_;  // Not changed after join(): any thread cuts them.
  std::vector<Link*> senders_;                // By round.
  std::vector<Link*> hops_;                   // By hop; null: this rank is no end of it.
  std::size_t piece_bytes_ = 0;
  std::size_t portion_bytes_ = 0;  // The bytes that go through the windows at a time.
  std::optional<Joining> joining_;
  WaitPolicy wait_policy_;
  std::uint64_t barriers_ = 1;  // Barriers passed at the host's gate; joining was the first.
  std::uint64_t operations_ = ~std::uint64_t{0};  // The newest one's number; joining is number 0.
  Request current_;
  bool is_member_ = false;  // Has joined, and has not left.

  // The meeting that is under way. Only the leader of a host uses these.
  std::vector<std::byte> blocks_;    // A frame, then the blocks in the order of block_of_.
  std::vector<Block> block_of_;      // By distance: this host's, the one of the host before, ...
  std::vector<Incoming> incoming_;   // By round.
  std::vector<std::byte> came_;      // The bytes received in this round, without the frame.
  bool sender_over_ = false;         // A link that we sent on is over.
  bool looks_around_ = false;        // While waiting for mates, look whether other hosts go on.
  std::vector<std::byte> gathered_;  // The data of the meeting, if this rank has no mates.

  const std::byte* data_ = nullptr;  // The data of the meeting: all ranks', or the root's.

  std::vector<pollfd> polled_;
  std::vector<pollfd> polled_back_;
  std::unique_ptr<os::Pool> two_threads_;  // Null: one thread is enough; is_worth_two_threads().
  std::vector<const std::byte*> rows_;
  Chain::Buffers buffers_;
  Outcome final_ = Outcome::kDone;  // The first outcome that was not kDone.
  mutable std::mutex mutex_;        // Guards why_.
  std::string why_;
};

}  // namespace holdfast::collective
