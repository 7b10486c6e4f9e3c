// SpanMeeting: the data of a SpanPart's meetings. The leader of a host collects what its ranks
// show, exchanges it with the leaders of the other hosts, and writes the verdict and the data into
// its window for its mates.
//
// It knows SpanStop, which ends an exchange early. SpanPart says when the host's ranks have written
// and when they may read.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collective/flow.h"
#include "collective/links.h"
#include "collective/outcome.h"
#include "collective/request.h"
#include "collective/segment.h"
#include "collective/span_map.h"
#include "collective/span_stop.h"

namespace holdfast::collective {

class SpanMeeting {
 public:
  // `identity`: a digest of the options that must be the same in all ranks. Requires: `map`,
  // `segment` and `stop` outlive the meeting.
  SpanMeeting(const SpanMap& map, Segment& segment, const SpanStop& stop, std::uint64_t identity);

  // The links of the next round; only a leader has any. Called once for each round, in order.
  void add_round(Link* to, Link* from);

  // Whether the meeting alone does this operation: it carries the data.
  [[nodiscard]] bool is_small(const Request& request) const;
  // Takes the memory of this rank's window before data is written there: on a full tmpfs the write
  // would be SIGBUS. `large`: the bytes of each half that a request needs which is not small.
  [[nodiscard]] Fault have_room(const Request& request, std::size_t large);

  // The leader's side, once all ranks of the host have written their requests and data. `shown`:
  // the data, if this rank has no mates. nullopt: there is no verdict, and the group must be
  // aborted.
  [[nodiscard]] std::optional<Verdict> lead(const Request& request,
                                            std::span<const std::byte> shown);
  // Whether no other host has ended the group: none of the links that blocks come on is over. A
  // host that leaves sends a frame first; after that its link is not looked at.
  [[nodiscard]] bool others_go_on();
  // Tells the other hosts that these ranks will not come to operation `sequence`, in place of the
  // blocks that they wait for in this round and the later ones.
  void send_left(std::uint64_t sequence, const std::vector<int>& left, std::size_t round = 0);

  void tell_mates(const Verdict& verdict);
  [[nodiscard]] Verdict heard() const;  // What the leader told.
  // The data of the meeting: all ranks' in rank order or, in a broadcast, the root's. Valid until
  // the next meeting.
  [[nodiscard]] const std::byte* data() const;

 private:
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

  [[nodiscard]] std::size_t gathered_bytes(const Request& request) const;
  [[nodiscard]] std::size_t shown_bytes(const Request& request, int host) const;
  void add_own_block(std::span<const std::byte> shown);
  [[nodiscard]] bool accepts(const Frame& frame, std::size_t round) const;
  bool take_block(std::size_t& at, std::size_t end, int host);
  bool take_blocks(std::size_t round);
  bool take_left(std::vector<int>& left) const;
  [[nodiscard]] bool exchange(std::size_t round, std::vector<int>& left);
  Verdict verdict_on_blocks();
  void place_data(std::byte* to);

  const SpanMap& map_;
  Segment& segment_;
  const SpanStop& stop_;
  const std::uint64_t identity_;
  std::uint64_t operation_ = 0;      // The number of the operation that is met for.
  std::vector<Link*> senders_;       // By round.
  std::vector<Incoming> incoming_;   // By round.
  std::vector<std::byte> blocks_;    // A frame, then the blocks in the order of block_of_.
  std::vector<Block> block_of_;      // By distance: this host's, the one of the host before, ...
  std::vector<std::byte> came_;      // The bytes received in this round, without the frame.
  bool sender_over_ = false;         // A link that we sent on is over.
  std::vector<std::byte> gathered_;  // data(), if this rank has no mates.
  std::vector<pollfd> polled_;
};

}  // namespace holdfast::collective
