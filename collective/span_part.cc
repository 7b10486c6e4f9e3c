#include "collective/span_part.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "collective/reduce.h"

namespace holdfast::collective {
namespace {

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

SpanPart::SpanPart(const Group::Options& options, SpanMap map, std::unique_ptr<Segment> segment,
                   RegisteredRows registered, SpanStop::Joining joining)
    : map_(std::move(map)),
      segment_(std::move(segment)),
      registered_(std::move(registered)),
      stop_(segment_->gate(), std::move(joining)),
      meeting_(map_, *segment_, stop_, identity_of(options, map_)),
      lane_(map_, segment_->half_bytes(), stop_),
      wait_policy_(WaitPolicy::among(map_.local_size())),
      come_to_(options.come_to) {}

// ---- joining ------------------------------------------------------------------------------------

Result<std::unique_ptr<Group>> SpanPart::join(const Options& options,
                                              const std::stop_token& cancel) {
  if (const Status good = Segment::check(options); !good) return good.error();
  const auto deadline = std::chrono::steady_clock::now() + options.join_timeout;
  SpanMap map(options.layout.host_of, options.rank);
  const Group::Options local = within_host(options, map);
  auto segment = Segment::open(local, map.mates());
  if (!segment) return segment.error();
  auto mapped = RegisteredRows::map(local);
  if (!mapped) {
    (*segment)->gate().abort();  // The others need not wait for a rank that can not come.
    return mapped.error();
  }
  std::unique_ptr<SpanPart> part(new SpanPart(options, std::move(map), *std::move(segment),
                                              *std::move(mapped), {deadline, cancel}));
  if (const Status met = part->segment_->meet(local, cancel); !met) return met.error();
  if (const Status linked = part->link(options, cancel); !linked) {
    part->gate().abort();
    return linked.error();
  }
  if (const Status met = part->meet_first(options); !met) return met.error();
  part->stop_.end_joining();
  part->is_member_ = true;
  part->looks_around_ = part->map_.leads_host() && part->map_.has_mates();
  return std::unique_ptr<Group>(std::move(part));
}

// Makes the links. Gives up as soon as a rank of this host has ended the gate.
Status SpanPart::link(const Group::Options& options, const std::stop_token& cancel) {
  const std::vector<Wanted> wanted = map_.wanted(options.world_ranks);
  if (wanted.empty()) return {};
  std::stop_source stop;
  const std::stop_callback forward(cancel, [&stop] { stop.request_stop(); });
  std::jthread watch;
  if (map_.has_mates()) {
    watch = std::jthread([this, &stop](const std::stop_token& linked) {
      std::mutex mutex;
      std::condition_variable_any wake;
      std::unique_lock lock(mutex);
      while (!linked.stop_requested() && !gate().frozen()) {
        wake.wait_for(lock, linked, std::chrono::milliseconds(kLookMs), [] { return false; });
      }
      if (gate().frozen()) stop.request_stop();
    });
  }
  auto made = options.layout.links->make(options.group, options.generation, wanted,
                                         stop_.joining()->deadline, stop.get_token());
  if (!made)
    return gate().frozen() && !cancel.stop_requested() ? not_formed(options) : made.error();
  std::size_t next = 0;
  for (std::size_t k = 0; map_.leads_host() && k < map_.rounds(); ++k, next += 2) {
    meeting_.add_round((*made)[next].get(), (*made)[next + 1].get());
  }
  std::vector<Link*> hops(map_.runs.size() - 1);
  for (const std::size_t s : map_.hops()) hops[s] = (*made)[next++].get();
  lane_.use(std::move(hops));
  stop_.own(*std::move(made));
  return {};
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
  if (stop_.joining()->cancel.stop_requested()) {
    return {Blame::kWorld, cat("joining generation ", o.generation, " was cancelled")};
  }
  if (stop_.joining()->is_late()) {
    return {Blame::kWorld, cat("generation ", o.generation, " did not form within ",
                               o.join_timeout.count(), " ms; ranks of other hosts did not come")};
  }
  return {Blame::kWorld, cat("another member gave up forming generation ", o.generation)};
}

// ---- ends ---------------------------------------------------------------------------------------

// An operation has failed on this rank, so it must end on all.
Outcome SpanPart::lost() {
  abort();
  return final_ = Outcome::kAborted;
}

Outcome SpanPart::fail(Passage passage) {
  if (passage == Passage::kAborted || aborted()) return lost();
  const std::vector<int> left = segment_->left();
  if (map_.leads_host()) meeting_.send_left(operations_, left);
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
    append(why_, cat(" ended training and will not come to what rank ", rank(),
                     " asked for: ", describe(current_)));
  }
  return final_;
}

void SpanPart::leave() {
  if (!std::exchange(is_member_, false)) return;
  segment_->leave();
  if (map_.leads_host() && final_ == Outcome::kDone && !aborted()) {
    meeting_.send_left(operations_ + 1, segment_->left());
  }
}

std::string SpanPart::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

// ---- meetings -----------------------------------------------------------------------------------

Outcome SpanPart::arrive_and_wait() {
  const std::uint64_t target = (barriers_ + 1) * static_cast<std::uint64_t>(map_.local_size());
  Passage passage{};
  if (const auto& joining = stop_.joining()) {
    passage = gate().arrive_and_wait(target, joining->deadline, joining->cancel);
  } else if (looks_around_) {
    passage =
        gate().arrive_and_wait(target, wait_policy_, [this] { return meeting_.others_go_on(); });
  } else {
    passage = gate().arrive_and_wait(target, wait_policy_);
  }
  if (passage != Passage::kPassed) return fail(passage);
  ++barriers_;
  return Outcome::kDone;
}

// After a failure nothing is written to the segment any more: slower mates may still read what was
// written before.
Outcome SpanPart::meet(Request request, std::span<const std::byte> shown) {
  if (final_ != Outcome::kDone) return aborted() ? Outcome::kAborted : final_;
  request.sequence = ++operations_;
  if (come_to_) come_to_->store(operations_, std::memory_order_relaxed);
  current_ = request;
  segment_->request(map_.local, operations_) = request;
  if (map_.has_mates() && !shown.empty()) {
    std::memcpy(segment_->window(map_.local, 0), shown.data(), shown.size());
  }
  if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
  std::optional<Verdict> verdict;
  if (map_.leads_host()) {
    verdict = meeting_.lead(request, shown);
    if (!verdict) return lost();
  }
  if (map_.has_mates()) {
    if (verdict) {
      meeting_.tell_mates(*verdict);
      // After another verdict than kDone the other hosts end their groups, which cuts the links.
      // That must not count as an abort.
      looks_around_ = looks_around_ && verdict->outcome == Outcome::kDone;
    }
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    if (!map_.leads_host()) verdict = meeting_.heard();
  }
  return end_with(*verdict);
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
  const bool small = meeting_.is_small(request);
  if (request.fault == Fault::kNone) {
    request.fault =
        meeting_.have_room(request, registered ? 0 : std::min(lane_.portion_bytes(), to.bytes));
  }
  const std::span shown(from, small && request.fault == Fault::kNone ? to.bytes : 0);
  if (const Outcome o = meet(request, shown); o != Outcome::kDone) return o;
  const Reduction how{to.element, op};
  if (small) {
    rows_.clear();
    for (int k = 0; k < world_size(); ++k) {
      rows_.push_back(meeting_.data() + static_cast<std::size_t>(k) * to.bytes);
    }
    if (to.count > 0) reduce_rows(to.data, rows_, to.count, how);
    return Outcome::kDone;
  }
  Chain::Terms terms{.how = how,
                     .all = static_cast<std::size_t>(world_size()),
                     .sequence = operations_,
                     .pieces = lane_.pieces(to.bytes, 0, to.bytes),
                     .rows = {},
                     .outs = {}};
  if (map_.has_mates() && !registered) return reduce_by_windows(to, from, terms);
  if (!map_.has_mates()) {
    terms.rows = {from};
    terms.outs = {to.data};
    return lane_.reduce(terms) ? Outcome::kDone : lost();
  }
  for (std::byte* row : registered_.rows) terms.outs.push_back(row + offset);
  terms.rows.assign(terms.outs.begin(), terms.outs.end());
  if (!lane_.reduce(terms)) return lost();
  return arrive_and_wait();
}

// Each rank copies its numbers into the first half of its window. The result comes into the second
// half of the window of the host's first rank.
Outcome SpanPart::reduce_by_windows(const Numbers& to, const std::byte* from, Chain::Terms& terms) {
  for (int k = 0; k < map_.local_size(); ++k) terms.rows.push_back(segment_->window(k, 0));
  terms.outs = {segment_->window(0, 1)};
  for (std::size_t at = 0; at < to.bytes; at += lane_.portion_bytes()) {
    terms.pieces = lane_.pieces(to.bytes, at, std::min(lane_.portion_bytes(), to.bytes - at));
    put(segment_->window(map_.local, 0), from + at, terms.pieces.bytes);
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    if (!lane_.reduce(terms)) return lost();
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    put(to.data + at, terms.outs[0], terms.pieces.bytes);
  }
  return Outcome::kDone;
}

// ---- copies -------------------------------------------------------------------------------------

Outcome SpanPart::broadcast(std::span<std::byte> bytes, int root) {
  const bool known = root >= 0 && root < world_size();
  Request request{.bytes = bytes.size(),
                  .root = root,
                  .kind = Kind::kBroadcast,
                  .fault = known ? Fault::kNone : Fault::kNoSuchRoot};
  if (known)
    request.fault = meeting_.have_room(request, std::min(lane_.portion_bytes(), bytes.size()));
  const bool small = meeting_.is_small(request);
  const bool shows = small && rank() == root && request.fault == Fault::kNone;
  const auto shown = shows ? std::span<const std::byte>(bytes) : std::span<const std::byte>();
  if (const Outcome o = meet(request, shown); o != Outcome::kDone) return o;
  if (!small) return flood(root, bytes.data(), bytes.size());
  if (rank() != root) put(bytes.data(), meeting_.data(), bytes.size());
  return Outcome::kDone;
}

Outcome SpanPart::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  const auto n = static_cast<std::size_t>(world_size());
  const bool fits = all.size() == mine.size() * n;
  Request request{.bytes = mine.size(),
                  .kind = Kind::kAllGather,
                  .fault = fits ? Fault::kNone : Fault::kWrongSize};
  if (fits)
    request.fault = meeting_.have_room(request, std::min(lane_.portion_bytes(), mine.size()));
  const bool small = meeting_.is_small(request);
  const bool shows = small && request.fault == Fault::kNone;
  if (const Outcome o = meet(request, shows ? mine : mine.first(0)); o != Outcome::kDone) return o;
  if (small) {
    put(all.data(), meeting_.data(), all.size());
    return Outcome::kDone;
  }
  for (std::size_t k = 0; k < n; ++k) {
    std::byte* own = all.data() + k * mine.size();
    if (static_cast<int>(k) == rank()) put(own, mine.data(), mine.size());
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
      .root = root, .sequence = operations_, .pieces = lane_.pieces(bytes, 0, bytes), .place = own};
  if (!map_.has_mates()) return lane_.flood(terms) ? Outcome::kDone : lost();
  const int owner = here ? map_.local_of[static_cast<std::size_t>(root)] : 0;
  terms.place = segment_->window(owner, here ? 0 : 1);
  for (std::size_t at = 0; at < bytes; at += lane_.portion_bytes()) {
    terms.pieces = lane_.pieces(bytes, at, std::min(lane_.portion_bytes(), bytes - at));
    if (rank() == root) put(terms.place, own + at, terms.pieces.bytes);
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    // Read before the next barrier: after that the root overwrites them.
    if (here && rank() != root) put(own + at, terms.place, terms.pieces.bytes);
    if (!lane_.flood(terms)) return lost();
    if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
    if (!here) put(own + at, terms.place, terms.pieces.bytes);
  }
  return Outcome::kDone;
}

}  // namespace holdfast::collective
