#include "collective/span_part.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "collective/reduce.h"

namespace holdfast::collective {
namespace {

// Bounds of the bytes that go over a link at a time in a large operation.
constexpr std::size_t kLinkPieceMax = std::size_t{256} << 10;
constexpr std::size_t kLinkPieceMin = std::size_t{32} << 10;
constexpr std::size_t kLinkPieceUnit = 4096;
// The period in which a rank that waits for other hosts looks for an abort by its mates.
constexpr int kLookMs = 20;
constexpr std::chrono::milliseconds kLook{kLookMs};
constexpr std::size_t kPiecesWorthAThread = 3;

void put(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

std::uint64_t identity_of(const Group::Options& o, const SpanMap& map) {
  const std::array<std::uint64_t, 9> all = {
      o.run_id,
      o.generation,
      static_cast<std::uint64_t>(o.world_size),
      o.window_bytes,
      o.registered.bytes == 0 ? 0 : o.registered.offset,
      o.registered.bytes,
      digest(std::as_bytes(std::span(map.host_of))),
      digest(std::as_bytes(std::span(o.world_ranks))),
      o.agreed,
  };
  return digest(std::as_bytes(std::span(all)));
}

// The options of the part of the group that is on this host.
Group::Options within_host(const Group::Options& o, const SpanMap& map) {
  Group::Options local = o;
  local.rank = map.local;
  local.world_size = map.local_size();
  local.registered.files.clear();
  for (const int r : map.mates()) {
    if (o.registered.bytes == 0) break;
    local.registered.files.push_back(o.registered.files[static_cast<std::size_t>(r)]);
  }
  return local;
}

}  // namespace

SpanPart::SpanPart(const Group::Options& options)
    : rank_(options.rank),
      world_size_(options.world_size),
      map_(options.layout.host_of, options.rank),
      identity_(identity_of(options, map_)),
      wait_policy_(WaitPolicy::among(map_.local_size())),
      block_of_(static_cast<std::size_t>(map_.hosts())) {}

// ---- joining ------------------------------------------------------------------------------------

Result<std::unique_ptr<Group>> SpanPart::join(const Options& options,
                                              const std::stop_token& cancel) {
  if (const Status good = Segment::check(options); !good) return good.error();
  const auto deadline = std::chrono::steady_clock::now() + options.join_timeout;
  std::unique_ptr<SpanPart> part(new SpanPart(options));
  const Group::Options local = within_host(options, part->map_);
  auto segment = Segment::open(local, part->map_.mates());
  if (!segment) return segment.error();
  part->segment_ = *std::move(segment);
  auto mapped = RegisteredRows::map(local);
  if (!mapped) {
    part->gate().abort();  // The others need not wait for a rank that can not come.
    return mapped.error();
  }
  part->registered_ = *std::move(mapped);
  const std::size_t half = part->segment_->half_bytes();
  const std::size_t wanted = half / (2 * static_cast<std::size_t>(part->map_.lanes));
  part->piece_bytes_ = std::min(
      half, std::clamp(wanted / kLinkPieceUnit * kLinkPieceUnit, kLinkPieceMin, kLinkPieceMax));
  part->portion_bytes_ = half / part->piece_bytes_ * part->piece_bytes_;
  if (const Status met = part->segment_->meet(local, cancel); !met) return met.error();
  part->joining_ = Joining{deadline, cancel};
  if (const Status linked = part->link(options, cancel); !linked) {
    part->gate().abort();
    return linked.error();
  }
  if (const Status met = part->meet_first(options); !met) return met.error();
  part->joining_.reset();
  part->is_member_ = true;
  part->looks_around_ = part->map_.leads_host() && part->has_mates();
  return std::unique_ptr<Group>(std::move(part));
}

// Makes the links. Gives up as soon as a rank of this host has ended the gate.
Status SpanPart::link(const Group::Options& options, const std::stop_token& cancel) {
  hops_.resize(map_.runs.size() - 1);
  const std::vector<Wanted> wanted = map_.wanted(options.world_ranks);
  if (wanted.empty()) return {};
  std::stop_source stop;
  const std::stop_callback forward(cancel, [&stop] { stop.request_stop(); });
  std::jthread watch;
  if (has_mates()) {
    watch = std::jthread([this, &stop](const std::stop_token& linked) {
      std::mutex mutex;
      std::condition_variable_any wake;
      std::unique_lock lock(mutex);
      while (!linked.stop_requested() && !gate().frozen()) {
        wake.wait_for(lock, linked, kLook, [] { return false; });
      }
      if (gate().frozen()) stop.request_stop();
    });
  }
  auto made = options.layout.links->make(options.group, options.generation, wanted,
                                         joining_->deadline, stop.get_token());
  if (!made)
    return gate().frozen() && !cancel.stop_requested() ? not_formed(options) : made.error();
  links_ = *std::move(made);
  std::size_t next = 0;
  for (std::size_t k = 0; map_.leads_host() && k < map_.rounds(); ++k) {
    senders_.push_back(links_[next++].get());
    Incoming& from = incoming_.emplace_back();
    from.flow = Flow(links_[next++].get(), Flow::Direction::kRead);
  }
  for (const std::size_t s : map_.hops()) hops_[s] = links_[next++].get();
  if (is_worth_two_threads()) {
    try {
      two_threads_ = std::make_unique<os::Pool>(2);
    } catch (const std::system_error&) {  // No second thread: one does it all, more slowly.
    }
  }
  return {};
}

// Whether a second thread pays: a run of this host lies between two others, two threads can use the
// links to these, and there are two cores for each lane.
bool SpanPart::is_worth_two_threads() const {
  if (std::thread::hardware_concurrency() < 2 * static_cast<unsigned>(map_.lanes)) return false;
  const auto is_own = [&](std::size_t hop) { return hops_[hop] != nullptr; };
  bool between = false;
  for (std::size_t s = 0; s + 1 < hops_.size(); ++s) {
    between = between || (is_own(s) && is_own(s + 1) && map_.runs[s + 1].host == map_.host);
  }
  return between && std::all_of(hops_.begin(), hops_.end(),
                                [](const Link* hop) { return hop == nullptr || hop->is_duplex(); });
}

// Waits for the ranks of all hosts, and checks that their options are the same.
Status SpanPart::meet_first(const Group::Options& options) {
  const Outcome met = meet({.kind = Kind::kBarrier}, {});
  if (met == Outcome::kDone) return {};
  if (met == Outcome::kMismatch) return Error{Blame::kPeer, why()};
  gate().abort();
  return not_formed(options);
}

Error SpanPart::not_formed(const Group::Options& o) const {
  if (joining_->cancel.stop_requested()) {
    return {Blame::kWorld, cat("joining generation ", o.generation, " was cancelled")};
  }
  if (std::chrono::steady_clock::now() >= joining_->deadline) {
    return {Blame::kWorld, cat("generation ", o.generation, " did not form within ",
                               o.join_timeout.count(), " ms; ranks of other hosts did not come")};
  }
  return {Blame::kWorld, cat("another member gave up forming generation ", o.generation)};
}

// ---- ends ---------------------------------------------------------------------------------------

void SpanPart::cut() {
  for (const auto& link : links_) link->cut();
}

void SpanPart::abort() {
  gate().abort();
  cut();
}

// An operation has failed on this rank, so it must end on all: abort() stops the mates and the
// hosts at the other ends of this rank's links, and they do the same.
Outcome SpanPart::lost() {
  abort();
  return final_ = Outcome::kAborted;
}

Outcome SpanPart::fail(Passage passage) {
  if (passage == Passage::kAborted || aborted()) return lost();
  const std::vector<int> left = segment_->left();
  if (map_.leads_host()) send_left(0, operations_, left);
  return end_with({Outcome::kLeft, name_ranks(left) + (left.size() == 1 ? " has" : " have")});
}

// If the verdict is kLeft, its `why` only names the ranks. The rest of the sentence says what this
// rank asked for.
Outcome SpanPart::end_with(const Verdict& verdict) {
  if (verdict.outcome == Outcome::kDone) return verdict.outcome;
  const std::lock_guard lock(mutex_);
  final_ = verdict.outcome;
  why_ = verdict.why;
  if (final_ == Outcome::kLeft) {
    append(why_, cat(" ended training and will not come to what rank ", rank_,
                     " asked for: ", describe(current_)));
  }
  return final_;
}

void SpanPart::leave() {
  if (!std::exchange(is_member_, false)) return;
  segment_->leave();
  if (map_.leads_host() && final_ == Outcome::kDone && !aborted()) {
    send_left(0, operations_ + 1, segment_->left());
  }
}

std::string SpanPart::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

// ---- waiting ------------------------------------------------------------------------------------

Outcome SpanPart::arrive_and_wait() {
  const std::uint64_t target = (barriers_ + 1) * static_cast<std::uint64_t>(map_.local_size());
  Passage passage{};
  if (joining_) {
    passage = gate().arrive_and_wait(target, joining_->deadline, joining_->cancel);
  } else if (looks_around_) {
    passage = gate().arrive_and_wait(target, wait_policy_, [this] { return others_go_on(); });
  } else {
    passage = gate().arrive_and_wait(target, wait_policy_);
  }
  if (passage != Passage::kPassed) return fail(passage);
  ++barriers_;
  return Outcome::kDone;
}

bool SpanPart::must_stop() const {
  if (gate().frozen()) return true;
  return joining_ && (joining_->cancel.stop_requested() ||
                      std::chrono::steady_clock::now() >= joining_->deadline);
}

// Runs the pump until it is done. False: the operation was ended before.
bool SpanPart::drive(Pump& pump, std::vector<pollfd>& polled) const {
  for (;;) {
    bool moved = pump.advance();
    if (pump.is_done()) return true;
    for (Flow* flow : pump.flows()) {
      if (!flow->is_busy()) continue;
      const Link::State state = flow->move();
      if (state == Link::State::kOver) return false;
      moved = moved || state == Link::State::kMoved;
    }
    if (must_stop()) return false;
    if (!moved) wait_for_any(pump.flows(), polled, kLookMs);
  }
}

// ---- sums ---------------------------------------------------------------------------------------

Outcome SpanPart::all_reduce(Numbers to, const std::byte* from, Op op) {
  Request request = reduction_of(to, op);
  const std::uint64_t offset = registered_.offset_of(to.data, to.bytes);
  const bool registered = offset != RegisteredRows::kOutside;
  if (registered) {
    request.kind = Kind::kAllReduce;
    request.offset = offset;
    put(to.data, from, to.bytes);
    from = to.data;
  }
  const bool small = is_small(request);
  if (request.fault == Fault::kNone) {
    request.fault = have_room(request, registered ? 0 : std::min(portion_bytes_, to.bytes));
  }
  const std::span shown(from, small && request.fault == Fault::kNone ? to.bytes : 0);
  if (const Outcome o = meet(request, shown); o != Outcome::kDone) return o;
  const Reduction how{to.element, op};
  if (small) {
    rows_.clear();
    for (int k = 0; k < world_size_; ++k) {
      rows_.push_back(data_ + static_cast<std::size_t>(k) * to.bytes);
    }
    if (to.count > 0) reduce_rows(to.data, rows_, to.count, how);
    return Outcome::kDone;
  }
  Chain::Terms terms{.how = how,
                     .all = static_cast<std::size_t>(world_size_),
                     .sequence = operations_,
                     .pieces = pieces(to.bytes, 0, to.bytes),
                     .rows = {},
                     .outs = {}};
  if (has_mates() && !registered) return reduce_by_windows(to, from, terms);
  if (!has_mates()) {
    terms.rows = {from};
    terms.outs = {to.data};
    return reduce(terms);
  }
  for (std::byte* row : registered_.rows) terms.outs.push_back(row + offset);
  terms.rows.assign(terms.outs.begin(), terms.outs.end());
  if (const Outcome o = reduce(terms); o != Outcome::kDone) return o;
  return arrive_and_wait();
}

Outcome SpanPart::reduce(const Chain::Terms& terms) {
  if (!map_.leads_lane()) return Outcome::kDone;
  if (two_threads_ == nullptr || terms.pieces.count() < kPiecesWorthAThread) {
    Chain chain(map_, hops_, terms, buffers_, Chain::Ways::kBoth);
    return drive(chain, polled_) ? Outcome::kDone : lost();
  }
  Chain there(map_, hops_, terms, buffers_, Chain::Ways::kThere);
  Chain back(map_, hops_, terms, buffers_, Chain::Ways::kBack);
  std::array<bool, 2> done{};
  two_threads_->run(2, [&](std::size_t way) {
    done[way] = way == 0 ? drive(there, polled_) : drive(back, polled_back_);
    if (!done[way]) abort();  // So that the other thread ends, too.
  });
  return done[0] && done[1] ? Outcome::kDone : lost();
}

// Each rank copies its numbers into the first half of its window. The result comes into the second
// half of the window of the host's first rank.
Outcome SpanPart::reduce_by_windows(const Numbers& to, const std::byte* from, Chain::Terms& terms) {
  for (int k = 0; k < map_.local_size(); ++k) terms.rows.push_back(segment_->window(k, 0));
  terms.outs = {segment_->window(0, 1)};
  for (std::size_t at = 0; at < to.bytes; at += portion_bytes_) {
    terms.pieces = pieces(to.bytes, at, std::min(portion_bytes_, to.bytes - at));
    put(segment_->window(map_.local, 0), from + at, terms.pieces.bytes);
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    if (const Outcome o = reduce(terms); o != Outcome::kDone) return o;
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    put(to.data + at, terms.outs[0], terms.pieces.bytes);
  }
  return Outcome::kDone;
}

Pieces SpanPart::pieces(std::size_t total, std::size_t begin, std::size_t bytes) const {
  return {.total = total,
          .piece_bytes = piece_bytes_,
          .begin = begin,
          .bytes = bytes,
          .lane = static_cast<std::size_t>(map_.local),
          .lanes = static_cast<std::size_t>(map_.lanes)};
}

// ---- copies -------------------------------------------------------------------------------------

Outcome SpanPart::broadcast(std::span<std::byte> bytes, int root) {
  const bool known = root >= 0 && root < world_size_;
  Request request{.bytes = bytes.size(),
                  .root = root,
                  .kind = Kind::kBroadcast,
                  .fault = known ? Fault::kNone : Fault::kNoSuchRoot};
  if (known) request.fault = have_room(request, std::min(portion_bytes_, bytes.size()));
  const bool small = is_small(request);
  const bool shows = small && rank_ == root && request.fault == Fault::kNone;
  const auto shown = shows ? std::span<const std::byte>(bytes) : std::span<const std::byte>();
  if (const Outcome o = meet(request, shown); o != Outcome::kDone) return o;
  if (!small) return flood(root, bytes.data(), bytes.size());
  if (rank_ != root) put(bytes.data(), data_, bytes.size());
  return Outcome::kDone;
}

Outcome SpanPart::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  const auto n = static_cast<std::size_t>(world_size_);
  const bool fits = all.size() == mine.size() * n;
  Request request{.bytes = mine.size(),
                  .kind = Kind::kAllGather,
                  .fault = fits ? Fault::kNone : Fault::kWrongSize};
  if (fits) request.fault = have_room(request, std::min(portion_bytes_, mine.size()));
  const bool small = is_small(request);
  const bool shows = small && request.fault == Fault::kNone;
  if (const Outcome o = meet(request, shows ? mine : mine.first(0)); o != Outcome::kDone) return o;
  if (small) {
    put(all.data(), data_, all.size());
    return Outcome::kDone;
  }
  for (std::size_t k = 0; k < n; ++k) {
    std::byte* own = all.data() + k * mine.size();
    if (static_cast<int>(k) == rank_) put(own, mine.data(), mine.size());
    const Outcome o = flood(static_cast<int>(k), own, mine.size());
    if (o != Outcome::kDone) return o;
  }
  return Outcome::kDone;
}

// Copies the root's bytes into every rank's `own`. On a host with several ranks they pass through a
// window: the first half of the root's or, on other hosts, the second half of the first rank's.
Outcome SpanPart::flood(int root, std::byte* own, std::size_t bytes) {
  const bool here = map_.host_of[static_cast<std::size_t>(root)] == map_.host;
  Flood::Terms terms{
      .root = root, .sequence = operations_, .pieces = pieces(bytes, 0, bytes), .place = own};
  const auto forward = [&] {
    if (!map_.leads_lane()) return Outcome::kDone;
    Flood pump(map_, hops_, terms);
    return drive(pump, polled_) ? Outcome::kDone : lost();
  };
  if (!has_mates()) return forward();
  const int owner = here ? map_.local_of[static_cast<std::size_t>(root)] : 0;
  terms.place = segment_->window(owner, here ? 0 : 1);
  for (std::size_t at = 0; at < bytes; at += portion_bytes_) {
    terms.pieces = pieces(bytes, at, std::min(portion_bytes_, bytes - at));
    if (rank_ == root) put(terms.place, own + at, terms.pieces.bytes);
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    // Read before the next barrier: after that the root overwrites them.
    if (here && rank_ != root) put(own + at, terms.place, terms.pieces.bytes);
    if (const Outcome o = forward(); o != Outcome::kDone) return o;
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    if (!here) put(own + at, terms.place, terms.pieces.bytes);
  }
  return Outcome::kDone;
}

}  // namespace holdfast::collective
