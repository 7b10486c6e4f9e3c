// SpanPart: what a Group does whose ranks lie on several hosts. Within a host over shared memory,
// as HostPart does; between the hosts over links.
//
// Every operation begins with a meeting. The ranks of a host show their requests, and few bytes of
// data, in their segment. The host's first rank, its leader, exchanges them with the other hosts'
// leaders: in round k each sends all it has to the host 2^k further on. Then it says the verdict to
// its mates. Small operations are done with that: every rank reduces all rows for itself.
//
// In a large operation every lane's ranks (SpanMap) work along the runs of ranks: a partial sum
// goes from run to run, always in rank order, so that its bits are those of one host. The result
// comes back the same way. Pieces follow each other closely, so all links and cores are busy.
//
// Whatever goes wrong cuts all links of this rank, and aborts the host's gate. So everybody stops:
// mates by the gate, other hosts by the links, theirs in turn.
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
  // A host's share of a meeting, as it lies in blocks_.
  struct Block {
    std::size_t at = 0;
    std::size_t end = 0;
    std::vector<Request> requests;  // One if all its ranks ask for the same; else each one's.
    bool same_options = true;
  };

  // What comes of a round, from the frame on; the frame perhaps before it is asked for.
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
  const std::uint64_t identity_;  // Of what all ranks' options have in common.
  std::unique_ptr<Segment> segment_;
  RegisteredRows registered_;                 // Of this host's ranks.
  std::vector<std::unique_ptr<Link>> links_;  // Never changes once joined: abort() cuts them.
  std::vector<Link*> senders_;                // By round.
  std::vector<Link*> hops_;                   // By hop; null: another rank's.
  std::size_t piece_bytes_ = 0;
  std::size_t portion_bytes_ = 0;  // What goes through the windows at a time.
  std::optional<Joining> joining_;
  WaitPolicy wait_policy_;
  std::uint64_t barriers_ = 1;                    // Of the host's gate, the joining among them.
  std::uint64_t operations_ = ~std::uint64_t{0};  // Begun so far; number 0 is the joining.
  Request current_;
  bool is_member_ = false;  // Has joined, and has not left.

  // Of the meeting that is under way, where this rank leads.
  std::vector<std::byte> blocks_;   // A frame, and behind it the blocks in the order of distance.
  std::vector<Block> block_of_;     // By distance: this host's, the one before, ...
  std::vector<Incoming> incoming_;  // By round.
  std::vector<std::byte> came_;     // Behind the frame.
  bool sender_over_ = false;
  bool looks_around_ = false;        // While it waits for its mates: whether other hosts go on.
  std::vector<std::byte> gathered_;  // What the meeting has brought, without mates.
  const std::byte* data_ = nullptr;  // The same, wherever it lies: all ranks', or the root's.

  std::vector<pollfd> polled_;
  std::vector<pollfd> polled_back_;
  std::unique_ptr<os::Pool> two_threads_;  // Where there is so much for this rank to move.
  std::vector<const std::byte*> rows_;
  Chain::Buffers buffers_;
  Outcome final_ = Outcome::kDone;  // The first other outcome, once it has come.
  mutable std::mutex mutex_;        // Of why_.
  std::string why_;
};

}  // namespace holdfast::collective
