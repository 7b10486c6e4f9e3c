#include "collective/span_meeting.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/text.h"

namespace holdfast::collective {
namespace {

// An operation is small, and done by its meeting alone, if it has at most this many bytes per rank
// and over all ranks.
constexpr std::size_t kMeetingBytes = std::size_t{8} << 10;
constexpr std::size_t kMeetingBytesOfAll = std::size_t{256} << 10;
// In the leader's window: the outcome; then, at kSentenceAt, its sentence or, at kDataAt, the
// gathered data. The sentence is cut so that it fits into the smallest half of a window, and is the
// same on all hosts.
constexpr std::size_t kDataAt = 64;
constexpr std::size_t kSentenceAt = 16;
constexpr std::size_t kSentenceMax = 4096 - kSentenceAt;
// The most time that a rank that leaves spends on telling the others.
constexpr std::chrono::seconds kFarewell{1};

// The beginning of a block. Then come the requests, then the data.
struct BlockHead {
  std::uint32_t host;
  std::uint32_t requests;
  std::uint64_t identity;
  std::uint64_t data_bytes;
};

// A Request is sent without its last member, the address: ranks need not agree about that.
constexpr std::size_t kShownBytes = offsetof(Request, address);
static_assert(kShownBytes == 32 && std::has_unique_object_representations_v<Request>);

template <class T>
void append_bytes(std::vector<std::byte>& to, const T& value, std::size_t most = sizeof(T)) {
  const auto bytes = std::as_bytes(std::span(&value, 1)).first(most);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

template <class T>
T read_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Whether a received request has valid enumerators, so that it can be described.
bool is_sound(const Request& r) {
  return r.kind <= Kind::kIntroduction && r.element <= Element::kBytes && r.op <= Op::kAverage &&
         r.fault <= Fault::kNoRoom;
}

}  // namespace

void SpanMeeting::Incoming::expect_frame() {
  if (!std::exchange(begun, true)) flow.begin(std::as_writable_bytes(std::span(&frame, 1)));
}

SpanMeeting::SpanMeeting(const SpanMap& map, Segment& segment, const SpanStop& stop,
                         std::uint64_t identity)
    : map_(map),
      segment_(segment),
      stop_(stop),
      identity_(identity),
      block_of_(static_cast<std::size_t>(map.hosts())) {}

void SpanMeeting::add_round(Link* to, Link* from) {
  senders_.push_back(to);
  incoming_.emplace_back().flow = Flow(from, Flow::Direction::kRead);
}

// ---- what is shown ------------------------------------------------------------------------------

bool SpanMeeting::is_small(const Request& r) const {
  const std::size_t room = std::min(kMeetingBytesOfAll, segment_.half_bytes() - kDataAt);
  if (r.bytes > kMeetingBytes) return false;
  return gathered_bytes(r) <= room;
}

// Bytes of data that all hosts together send in the meeting, if the request is small.
std::size_t SpanMeeting::gathered_bytes(const Request& r) const {
  return r.kind == Kind::kBroadcast ? r.bytes : r.bytes * static_cast<std::size_t>(map_.size());
}

// Bytes of data that `host` sends in the meeting, if all its ranks have this request.
std::size_t SpanMeeting::shown_bytes(const Request& r, int host) const {
  if (r.fault != Fault::kNone || !is_small(r)) return 0;
  if (r.kind != Kind::kBroadcast) {
    return r.bytes * map_.ranks[static_cast<std::size_t>(host)].size();
  }
  const bool known = r.root >= 0 && r.root < map_.size();
  return known && map_.host_of[static_cast<std::size_t>(r.root)] == host ? r.bytes : 0;
}

Fault SpanMeeting::have_room(const Request& request, std::size_t large) {
  if (!map_.has_mates()) return Fault::kNone;
  std::size_t bytes = large;
  if (is_small(request)) {
    bytes = map_.leads_host() ? kDataAt + gathered_bytes(request) : request.bytes;
  }
  return segment_.take_window(bytes) ? Fault::kNone : Fault::kNoRoom;
}

void SpanMeeting::add_own_block(std::span<const std::byte> shown) {
  blocks_.resize(sizeof(Frame));
  Block& block = block_of_[0];
  block.requests.clear();
  for (int k = 0; k < map_.local_size(); ++k) {
    block.requests.push_back(segment_.request(k, operation_));
  }
  const Request& first = block.requests[0];
  const bool same = std::all_of(block.requests.begin(), block.requests.end(),
                                [&](const Request& r) { return r == first; });
  if (same) block.requests.resize(1);
  const std::size_t data = same ? shown_bytes(first, map_.host) : 0;
  append_bytes(blocks_,
               BlockHead{static_cast<std::uint32_t>(map_.host),
                         static_cast<std::uint32_t>(block.requests.size()), identity_, data});
  for (const Request& r : block.requests) append_bytes(blocks_, r, kShownBytes);
  block.at = sizeof(Frame);
  block.same_options = true;
  if (data == 0) {
  } else if (!map_.has_mates()) {
    blocks_.insert(blocks_.end(), shown.begin(), shown.end());
  } else {
    for (const int r : map_.mates()) {
      if (first.kind == Kind::kBroadcast && r != first.root) continue;
      const std::byte* row = segment_.window(map_.local_of[static_cast<std::size_t>(r)], 0);
      blocks_.insert(blocks_.end(), row, row + first.bytes);
    }
  }
  block.end = blocks_.size();
}

// ---- what comes ---------------------------------------------------------------------------------

// Whether this frame may come in this round, and is not longer than the blocks could be.
bool SpanMeeting::accepts(const Frame& frame, std::size_t round) const {
  if (!frame.is_whole()) return false;  // Before its length is waited for.
  if (frame.magic != Frame::kMagic || frame.sequence != operation_) return false;
  if (frame.type == FrameType::kLeft) {
    return frame.bytes > 0 && frame.bytes % sizeof(std::int32_t) == 0 &&
           frame.bytes / sizeof(std::int32_t) <= static_cast<std::size_t>(map_.size());
  }
  if (frame.type != FrameType::kMeeting || frame.number != round) return false;
  const std::size_t first = std::size_t{1} << round;
  const std::size_t last = std::min(2 * first, block_of_.size());
  std::size_t most = 0;
  for (std::size_t i = first; i < last; ++i) {
    const auto host = static_cast<std::size_t>(map_.host_at(-static_cast<int>(i)));
    most += sizeof(BlockHead) + map_.ranks[host].size() * (kShownBytes + kMeetingBytes);
  }
  return frame.bytes <= most;
}

bool SpanMeeting::take_block(std::size_t& at, std::size_t end, int host) {
  Block& block =
      block_of_[static_cast<std::size_t>((map_.host - host + map_.hosts()) % map_.hosts())];
  block.at = at;
  if (end - at < sizeof(BlockHead)) return false;
  const auto head = read_as<BlockHead>(&blocks_[at]);
  at += sizeof head;
  const std::size_t ranks = map_.ranks[static_cast<std::size_t>(host)].size();
  if (head.host != static_cast<std::uint32_t>(host)) return false;
  if (head.requests != 1 && head.requests != ranks) return false;
  if (end - at < head.requests * kShownBytes) return false;
  block.requests.clear();
  for (std::uint32_t i = 0; i < head.requests; ++i, at += kShownBytes) {
    Request& shown = block.requests.emplace_back();
    std::memcpy(static_cast<void*>(&shown), &blocks_[at], kShownBytes);
    if (!is_sound(shown)) return false;
  }
  block.same_options = head.identity == identity_;
  // If that host has other options, another size may be right there.
  const bool one = head.requests == 1;
  const std::size_t data = one ? shown_bytes(block.requests[0], host) : 0;
  if (block.same_options && head.data_bytes != data) return false;
  if (end - at < head.data_bytes) return false;
  at += head.data_bytes;
  block.end = at;
  return true;
}

// Round k brings the blocks of the hosts 2^k to 2^(k + 1) - 1 before this one.
bool SpanMeeting::take_blocks(std::size_t round) {
  const std::size_t first = std::size_t{1} << round;
  const std::size_t last = std::min(2 * first, block_of_.size());
  std::size_t at = blocks_.size();
  blocks_.insert(blocks_.end(), came_.begin(), came_.end());
  for (std::size_t i = first; i < last; ++i) {
    if (!take_block(at, blocks_.size(), map_.host_at(-static_cast<int>(i)))) return false;
  }
  return at == blocks_.size();
}

bool SpanMeeting::take_left(std::vector<int>& left) const {
  for (std::size_t at = 0; at < came_.size(); at += sizeof(std::int32_t)) {
    const auto r = read_as<std::int32_t>(&came_[at]);
    if (r < 0 || r >= map_.size() || (!left.empty() && r <= left.back())) return false;
    left.push_back(r);
  }
  return true;
}

// ---- rounds -------------------------------------------------------------------------------------

// One round: sends the blocks that this host has, and receives others. `left` gets the ranks that
// have left; if there are any, no blocks came. False: the group must be aborted.
bool SpanMeeting::exchange(std::size_t round, std::vector<int>& left) {
  const std::size_t had = std::size_t{1} << round;
  const std::size_t sent = std::min(had, block_of_.size() - had);
  const std::size_t end = block_of_[sent - 1].end;
  Frame frame{.type = FrameType::kMeeting,
              .sequence = operation_,
              .number = round,
              .bytes = end - sizeof(Frame)};
  frame.seal_with(std::span(blocks_).first(end).subspan(sizeof frame));
  std::memcpy(blocks_.data(), &frame, sizeof frame);
  Flow out(senders_[round], Flow::Direction::kWrite);
  Incoming& from = incoming_[round];
  Flow& in = from.flow;
  const std::array<Flow*, 2> both = {&out, &in};
  out.begin(std::span(blocks_).first(end));
  from.expect_frame();
  // If the link that we send on is over, the host may just have left: what we wait for says so.
  bool out_over = false;
  for (bool has_frame = false, has_all = false; !has_all || (out.is_busy() && !out_over);) {
    bool moved = false;
    if (out.is_busy() && !out_over) {
      const Link::State state = out.move();
      out_over = state == Link::State::kOver;
      moved = state == Link::State::kMoved;
    }
    if (in.is_busy()) {
      const Link::State state = in.move();
      if (state == Link::State::kOver) return false;
      moved = moved || state == Link::State::kMoved;
    }
    if (in.ended()) {
      moved = true;
      if (has_frame) {
        has_all = true;
        if (!in.is_true(from.frame, came_)) return false;
      } else if (!accepts(from.frame, round)) {
        in.refuse();
        return false;
      } else {
        has_frame = true;
        came_.resize(from.frame.bytes);
        in.begin(std::span(came_));
      }
    }
    if (stop_.must_stop()) return false;
    if (!moved) wait_for_any(std::span(both).subspan(out_over ? 1 : 0), polled_, kLookMs);
  }
  from.begun = false;
  sender_over_ = sender_over_ || out_over;
  return from.frame.type == FrameType::kLeft ? take_left(left) : take_blocks(round);
}

bool SpanMeeting::others_go_on() {
  for (Incoming& from : incoming_) {
    from.expect_frame();
    if (from.flow.is_busy() && from.flow.move() == Link::State::kOver) return false;
  }
  return true;
}

void SpanMeeting::send_left(std::uint64_t sequence, const std::vector<int>& left,
                            std::size_t round) {
  std::vector<std::byte> farewell;
  Frame frame{.type = FrameType::kLeft,
              .sequence = sequence,
              .number = 0,
              .bytes = left.size() * sizeof(std::int32_t)};
  frame.seal_with(std::as_bytes(std::span(left)));
  append_bytes(farewell, frame);
  for (const std::int32_t r : left) append_bytes(farewell, r);
  std::vector<Flow> flows;
  for (std::size_t k = round; k < senders_.size(); ++k) {
    flows.emplace_back(senders_[k], Flow::Direction::kWrite);
    flows.back().begin(std::span(farewell));
  }
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  std::vector<Flow*> busy;
  for (Flow& flow : flows) busy.push_back(&flow);
  while (!busy.empty() && !stop_.aborted() && std::chrono::steady_clock::now() < deadline) {
    bool moved = false;
    for (Flow* flow : busy) moved = flow->move() == Link::State::kMoved || moved;
    std::erase_if(busy, [](const Flow* flow) { return !flow->is_busy() || flow->is_over(); });
    if (!moved) wait_for_any(busy, polled_, kLookMs);
  }
}

// ---- verdicts -----------------------------------------------------------------------------------

// Requires: the blocks of all hosts have come.
Verdict SpanMeeting::verdict_on_blocks() {
  const Request& first = block_of_[0].requests[0];
  bool same = first.fault == Fault::kNone;
  std::vector<int> strangers;
  for (std::size_t i = 0; i < block_of_.size(); ++i) {
    const Block& block = block_of_[i];
    same = same && block.requests.size() == 1 && block.requests[0] == first;
    if (block.same_options) continue;
    const auto& ranks = map_.ranks[static_cast<std::size_t>(map_.host_at(-static_cast<int>(i)))];
    strangers.insert(strangers.end(), ranks.begin(), ranks.end());
  }
  if (!strangers.empty()) {
    std::sort(strangers.begin(), strangers.end());
    return {Outcome::kMismatch, cat(name_ranks(strangers),
                                    " joined with another run, generation, layout, size of the "
                                    "window or of registered memory than rank ",
                                    map_.rank(), "; these options must be the same in all ranks")};
  }
  if (same) return {};
  std::vector<Request> by_rank(static_cast<std::size_t>(map_.size()));
  for (std::size_t i = 0; i < block_of_.size(); ++i) {
    const auto& ranks = map_.ranks[static_cast<std::size_t>(map_.host_at(-static_cast<int>(i)))];
    const std::vector<Request>& requests = block_of_[i].requests;
    for (std::size_t k = 0; k < ranks.size(); ++k) {
      by_rank[static_cast<std::size_t>(ranks[k])] = requests[requests.size() == 1 ? 0 : k];
    }
  }
  return {Outcome::kMismatch,
          describe_mismatch(by_rank, segment_.directory()).substr(0, kSentenceMax)};
}

// Copies the blocks' data to `to`: all ranks' in rank order or, in a broadcast, the root's.
void SpanMeeting::place_data(std::byte* to) {
  const Request& request = block_of_[0].requests[0];
  for (std::size_t i = 0; i < block_of_.size(); ++i) {
    const int host = map_.host_at(-static_cast<int>(i));
    const std::size_t bytes = shown_bytes(request, host);
    if (bytes == 0) continue;
    const std::byte* data = &blocks_[block_of_[i].end - bytes];
    if (request.kind == Kind::kBroadcast) {
      std::memcpy(to, data, bytes);
      continue;
    }
    for (const int r : map_.ranks[static_cast<std::size_t>(host)]) {
      std::memcpy(to + static_cast<std::size_t>(r) * request.bytes, data, request.bytes);
      data += request.bytes;
    }
  }
}

void SpanMeeting::tell_mates(const Verdict& verdict) {
  std::byte* window = segment_.window(0, 1);
  const auto outcome = static_cast<std::uint64_t>(verdict.outcome);
  const std::uint64_t length = std::min(verdict.why.size(), kSentenceMax);
  std::memcpy(window, &outcome, sizeof outcome);
  std::memcpy(window + sizeof outcome, &length, sizeof length);
  if (length > 0) std::memcpy(window + kSentenceAt, verdict.why.data(), length);
}

Verdict SpanMeeting::heard() const {
  const std::byte* window = segment_.window(0, 1);
  const auto outcome = static_cast<Outcome>(read_as<std::uint64_t>(window));
  if (outcome == Outcome::kDone) return {};
  const auto length = read_as<std::uint64_t>(window + sizeof(std::uint64_t));
  return {outcome, std::string(reinterpret_cast<const char*>(window + kSentenceAt), length)};
}

const std::byte* SpanMeeting::data() const {
  return map_.has_mates() ? segment_.window(0, 1) + kDataAt : gathered_.data();
}

std::optional<Verdict> SpanMeeting::lead(const Request& request, std::span<const std::byte> shown) {
  operation_ = request.sequence;
  add_own_block(shown);
  sender_over_ = false;
  std::vector<int> left;
  for (std::size_t round = 0; round < senders_.size(); ++round) {
    if (!exchange(round, left)) return std::nullopt;
    if (left.empty()) continue;
    send_left(operation_, left, round + 1);
    return Verdict{Outcome::kLeft, name_ranks(left) + (left.size() == 1 ? " has" : " have")};
  }
  if (sender_over_) return std::nullopt;  // A host did not get all, though nobody left.
  Verdict verdict = verdict_on_blocks();
  if (verdict.outcome != Outcome::kDone) return verdict;
  if (map_.has_mates()) {
    place_data(segment_.window(0, 1) + kDataAt);
  } else {
    gathered_.resize(is_small(request) ? gathered_bytes(request) : 0);
    place_data(gathered_.data());
  }
  return verdict;
}

}  // namespace holdfast::collective
