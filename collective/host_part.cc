#include "collective/host_part.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "collective/reduce.h"

namespace holdfast::collective {
namespace {

// Up to this size, one barrier and a whole reduction in every rank are cheaper than two barriers
// and a share in each. With two ranks that holds for every size: each rank reads the other's piece
// once, instead of half of it twice.
constexpr std::size_t kSmallBytes = std::size_t{32} << 10;
constexpr int kFewRanks = 2;
// Up to this size, summed over all ranks, every rank reduces registered numbers for itself.
constexpr std::size_t kAloneBytes = std::size_t{48} << 10;
// Bytes that two ranks pass through their windows at a time: so few that both pieces and their
// result stay in a second-level cache, next to what else runs on the core.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10;
// The same for three and more ranks, which have two barriers for each piece. If they share cores,
// each rank has to get a core in between. So large pieces are faster, as long as a rank's share
// stays in its cache: with 3 and 4 ranks on 2 cores, a quarter faster than pieces of 128 KiB.
constexpr std::size_t kSharedPieceBytes = std::size_t{512} << 10;
// A result of this size no longer fits into a second-level cache.
constexpr std::size_t kPastCachesBytes = std::size_t{4} << 20;
// Bytes that a rank reduces between two looks for an abort.
constexpr std::size_t kBlockBytes = std::size_t{64} << 10;
// The last blocks of a share, which other ranks leave to its owner: they are in its caches.
constexpr std::uint64_t kLeftToOwner = 3;
// The lower bits of Segment::taken() count blocks (enough for a terabyte); the operation's number
// is above them.
constexpr int kTakenBits = 24;

// The bytes of `total` that `rank` reduces. Shares are whole cache lines: no two ranks write one.
Range share_of(std::size_t total, int rank, int world_size) {
  const auto n = static_cast<std::size_t>(world_size);
  const std::size_t share = ((total + n - 1) / n + 63) / 64 * 64;
  const std::size_t begin = std::min(total, share * static_cast<std::size_t>(rank));
  return {begin, std::min(total, begin + share)};
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

Result<std::unique_ptr<Group>> HostPart::join(const Options& options,
                                              const std::stop_token& cancel) {
  auto segment = Segment::open(options);
  if (!segment) return segment.error();
  std::unique_ptr<HostPart> part(new HostPart);
  part->segment_ = *std::move(segment);
  part->own_regions_ = options.regions;
  part->come_to_ = options.come_to;
  const auto n = static_cast<std::size_t>(options.world_size);
  part->introduced_.resize(n);
  part->rows_.resize(n);
  part->block_rows_.resize(n);
  part->piece_rows_.resize(n);
  part->addresses_.resize(n);
  auto mapped = RegisteredRows::map(options);
  if (!mapped) {
    part->abort();  // The others need not wait for a rank that can not come.
    return mapped.error();
  }
  part->registered_ = *std::move(mapped);
  if (const Status met = part->segment_->meet(options, cancel); !met) return met.error();
  part->wait_policy_ = WaitPolicy::among(options.world_size);
  part->is_member_ = true;
  return std::unique_ptr<Group>(std::move(part));
}

// ---- barriers -----------------------------------------------------------------------------------

Outcome HostPart::arrive_and_wait() {
  const auto n = static_cast<std::uint64_t>(world_size());
  const Passage passage = segment_->gate().arrive_and_wait((barriers_ + 1) * n, wait_policy_);
  if (passage != Passage::kPassed) return fail(passage);
  ++barriers_;
  return Outcome::kDone;
}

Outcome HostPart::fail(Passage passage) {
  if (passage == Passage::kAborted || aborted()) return final_ = Outcome::kAborted;
  const std::vector<int> left = segment_->left();
  const std::lock_guard lock(mutex_);
  final_ = Outcome::kLeft;
  why_ = cat(name_ranks(left), left.size() == 1 ? " has" : " have",
             " ended training and will not come to what rank ", rank(),
             " asked for: ", describe(current_));
  return final_;
}

// The first barrier of every operation: the ranks exchange their requests through the segment.
// After a failure nothing is written there any more: slower ranks may still read the last request.
Outcome HostPart::begin(Request request) {
  if (final_ != Outcome::kDone) return aborted() ? Outcome::kAborted : final_;
  request.sequence = ++operations_;
  if (come_to_) come_to_->store(operations_, std::memory_order_relaxed);
  current_ = request;
  segment_->request(rank(), operations_) = request;
  if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
  bool same = request.fault == Fault::kNone;
  for (int k = 0; k < world_size(); ++k) same &= segment_->request(k, operations_) == request;
  if (same) [[likely]]
    return Outcome::kDone;
  std::vector<Request> by_rank;
  for (int k = 0; k < world_size(); ++k) by_rank.push_back(segment_->request(k, operations_));
  const std::lock_guard lock(mutex_);
  final_ = Outcome::kMismatch;
  why_ = describe_mismatch(by_rank, segment_->directory());
  return final_;
}

// Takes the memory of this rank's window before data is written there: on a full tmpfs the write
// would be SIGBUS.
Fault HostPart::have_room(std::size_t bytes) {
  return segment_->take_window(bytes) ? Fault::kNone : Fault::kNoRoom;
}

// ---- sums ---------------------------------------------------------------------------------------

Outcome HostPart::all_reduce(Numbers to, const std::byte* from, Op op) {
  if (const std::uint64_t offset = registered_.offset_of(to.data, to.bytes);
      offset != RegisteredRows::kOutside) {
    if (from != to.data) copy_bytes(to.data, from, to.bytes);
    return all_reduce_registered(to, offset, op);
  }
  if (own_regions_) {
    const RegionAddress address = own_regions_->address_of(to.data, to.bytes);
    if (address.region != 0) return all_reduce_in_regions(to, from, op, address);
  }
  if (world_size() > 1) return reduce_by_windows(to, from, op, false);
  const Outcome begun = begin(reduction_of(to, op));
  return begun == Outcome::kDone ? reduce_own({to, from, op}) : begun;
}

Outcome HostPart::all_reduce_registered(const Numbers& numbers, std::uint64_t offset, Op op) {
  // `alone`: every rank reduces all numbers, with one barrier in place of two. It is not used with
  // two ranks: on a core each, their two barriers take no longer.
  const Piece piece{numbers, numbers.data, op};
  const auto n = static_cast<std::size_t>(world_size());
  const bool alone = world_size() > kFewRanks && numbers.bytes * n <= kAloneBytes &&
                     numbers.bytes <= segment_->half_bytes();
  Request request = reduction_of(numbers, op);
  request.kind = Kind::kAllReduce;
  request.offset = offset;
  if (alone && request.fault == Fault::kNone) request.fault = have_room(numbers.bytes);
  if (alone && request.fault == Fault::kNone) show(piece, {0, 0});
  if (const Outcome o = begin(request); o != Outcome::kDone) return o;
  if (world_size() == 1) return reduce_own(piece);
  if (alone) {
    reduce_whole(piece);
    ++pieces_;
    return Outcome::kDone;
  }
  // No rows: there is no registered memory, so there are no bytes to reduce.
  for (std::size_t k = 0; k < registered_.rows.size(); ++k) rows_[k] = registered_.rows[k] + offset;
  return reduce_everywhere(numbers, op);
}

// Every rank reduces its share of all rows and writes it into all of them. Then it takes blocks of
// the shares of others, so that nobody waits for a rank that has no core at the moment.
Outcome HostPart::reduce_everywhere(const Numbers& numbers, Op op) {
  for (int i = 0; i < world_size(); ++i) {
    const int owner = (rank() + i) % world_size();
    const Range share = share_of(numbers.bytes, owner, world_size());
    for (Range block{}; take(owner, share, i == 0 ? 0 : kLeftToOwner, block);) {
      if (segment_->gate().frozen()) return fail(Passage::kLeft);
      for (std::size_t k = 0; k < rows_.size(); ++k) block_rows_[k] = rows_[k] + block.begin;
      reduce_in_place(block_rows_, (block.end - block.begin) / size_of(numbers.element),
                      {numbers.element, op});
    }
  }
  return arrive_and_wait();
}

// Takes the next block of the owner's share, unless at most `leave` blocks are left. A count of an
// earlier operation reads as zero: all ranks have ended that operation, and none has ended this.
bool HostPart::take(int owner, const Range& share, std::uint64_t leave, Range& block) {
  const std::uint64_t blocks = (share.end - share.begin + kBlockBytes - 1) / kBlockBytes;
  if (blocks <= leave) return false;
  std::atomic<std::uint64_t>& word = segment_->taken(owner);
  const std::uint64_t none = operations_ << kTakenBits;
  std::uint64_t was = word.load(std::memory_order_relaxed);
  std::uint64_t next = 0;
  do {
    next = was < none ? none : was;
    if (next - none + leave >= blocks) return false;
  } while (!word.compare_exchange_weak(was, next + 1, std::memory_order_relaxed));
  block.begin = share.begin + (next - none) * kBlockBytes;
  block.end = std::min(share.end, block.begin + kBlockBytes);
  return true;
}

// The whole reduction in a world of one rank.
Outcome HostPart::reduce_own(const Piece& piece) {
  const Reduction how{piece.to.element, piece.op};
  if (!keeps_one_row(how)) {
    reduce_rows(piece.to.data, {&piece.from, 1}, piece.to.count, how);
  } else if (piece.from != piece.to.data) {
    copy_bytes(piece.to.data, piece.from, piece.to.bytes);
  }
  return Outcome::kDone;
}

// `begun`: begin() was called for this operation already, but no rank has shown a piece.
Outcome HostPart::reduce_by_windows(const Numbers& numbers, const std::byte* from, Op op,
                                    bool begun) {
  const bool few = world_size() <= kFewRanks;
  const std::size_t most = std::min(few ? kPieceBytes : kSharedPieceBytes, segment_->half_bytes());
  const bool whole = few || numbers.bytes <= std::min(kSmallBytes, most);
  const bool past = from != numbers.data && numbers.bytes >= kPastCachesBytes;
  Request request = reduction_of(numbers, op);
  if (request.fault == Fault::kNone) request.fault = have_room(std::min(most, numbers.bytes));
  std::size_t at = 0;
  do {
    Piece piece{numbers, from + at, op, past};
    piece.to.data += at;
    piece.to.bytes = std::min(most, numbers.bytes - at);
    piece.to.count = piece.to.bytes / size_of(numbers.element);
    const std::size_t left = numbers.bytes - at - piece.to.bytes;
    if (whole && left >= most) piece.soon = piece.from + most;
    if (request.fault == Fault::kNone) {
      show(piece, whole ? Range{0, 0} : share_of(piece.to.bytes, rank(), world_size()));
    }
    Outcome o = at == 0 ? begin(request) : arrive_and_wait();
    // A rank whose numbers lie in a region has not shown its piece at the first begin(). All ranks
    // see that in its request, and begin once more.
    if (o == Outcome::kDone && at == 0 && !begun && is_any_in_region()) o = begin(request);
    if (o != Outcome::kDone) return o;
    if (whole) {
      reduce_whole(piece);
    } else if (o = reduce_share(piece); o != Outcome::kDone) {
      return o;
    }
    at += piece.to.bytes;
    // The next piece may be shown in the same half of the window, which is in the caches. Others
    // may still read this rank's result there, but it lies in this rank's share, and show() does
    // not write to that. A shorter last piece has other shares, so it gets the other half.
    if (whole || left < most) ++pieces_;
  } while (at < numbers.bytes);
  return Outcome::kDone;
}

// Copies the piece into this rank's window, except for `unread`, which the others do not read.
void HostPart::show(const Piece& piece, Range unread) {
  std::byte* window = segment_->window(rank(), pieces_);
  copy_bytes(window, piece.from, unread.begin);
  copy_bytes(window + unread.end, piece.from + unread.end, piece.to.bytes - unread.end);
}

// Reduces a range of the ranks' windows into `to`. This rank's own row is read from piece.from, not
// from the window: it is still in the caches there.
void HostPart::reduce_range(const Piece& piece, Range range, std::byte* to, bool past_caches) {
  for (int k = 0; k < world_size(); ++k) {
    const std::byte* row = k == rank() ? piece.from : segment_->window(k, pieces_);
    piece_rows_[static_cast<std::size_t>(k)] = row + range.begin;
  }
  const std::size_t count = (range.end - range.begin) / size_of(piece.to.element);
  if (count == 0) return;
  reduce_rows(to, piece_rows_, count, {piece.to.element, piece.op}, piece.soon, past_caches);
}

// Every rank reduces everything, so there is no second barrier.
void HostPart::reduce_whole(const Piece& piece) {
  reduce_range(piece, {0, piece.to.bytes}, piece.to.data, piece.past_caches);
}

// Copies the owner's share out of its window.
void HostPart::fetch(const Piece& piece, int owner, Range range) {
  const std::byte* const from = segment_->window(owner, pieces_) + range.begin;
  const std::size_t bytes = range.end - range.begin;
  if (!piece.past_caches) return copy_bytes(piece.to.data + range.begin, from, bytes);
  copy_past_caches(piece.to.data + range.begin, from, bytes);
}

// Every rank reduces its share into its own window, and all ranks fetch it from there.
Outcome HostPart::reduce_share(const Piece& piece) {
  const Range share = share_of(piece.to.bytes, rank(), world_size());
  for (std::size_t at = share.begin; at < share.end; at += kBlockBytes) {
    if (segment_->gate().frozen()) return fail(Passage::kLeft);
    const Range block{at, std::min(share.end, at + kBlockBytes)};
    reduce_range(piece, block, segment_->window(rank(), pieces_) + at, false);
    fetch(piece, rank(), block);
  }
  if (const Outcome o = arrive_and_wait(); o != Outcome::kDone) return o;
  for (int k = 0; k < world_size(); ++k) {
    if (k != rank()) fetch(piece, k, share_of(piece.to.bytes, k, world_size()));
  }
  return Outcome::kDone;
}

// ---- copies -------------------------------------------------------------------------------------
// One barrier per piece. Successive pieces use the two halves of the window in turn. So a half is
// written again only after all ranks have arrived at the barrier of the piece in the other half.

Outcome HostPart::broadcast(std::span<std::byte> bytes, int root) {
  const bool known = root >= 0 && root < world_size();
  const std::size_t half = segment_->half_bytes();
  const Request request{.bytes = bytes.size(),
                        .root = root,
                        .kind = Kind::kBroadcast,
                        .fault = !known           ? Fault::kNoSuchRoot
                                 : rank() == root ? have_room(std::min(half, bytes.size()))
                                                  : Fault::kNone};
  std::size_t at = 0;
  do {
    const std::span piece = bytes.subspan(at, std::min(half, bytes.size() - at));
    std::byte* window = segment_->window(known ? root : 0, pieces_);
    if (rank() == root && request.fault == Fault::kNone) {
      copy_bytes(window, piece.data(), piece.size());
    }
    if (const Outcome o = at == 0 ? begin(request) : arrive_and_wait(); o != Outcome::kDone)
      return o;
    if (rank() != root) copy_bytes(piece.data(), window, piece.size());
    ++pieces_;
    at += piece.size();
  } while (at < bytes.size());
  return Outcome::kDone;
}

Outcome HostPart::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  const auto n = static_cast<std::size_t>(world_size());
  const std::size_t half = segment_->half_bytes();
  const bool fits = all.size() == mine.size() * n;
  const Request request{.bytes = mine.size(),
                        .kind = Kind::kAllGather,
                        .fault = fits ? have_room(std::min(half, mine.size())) : Fault::kWrongSize};
  std::size_t at = 0;
  do {
    const std::size_t bytes = std::min(half, mine.size() - at);
    if (request.fault == Fault::kNone) {
      copy_bytes(segment_->window(rank(), pieces_), mine.data() + at, bytes);
    }
    if (const Outcome o = at == 0 ? begin(request) : arrive_and_wait(); o != Outcome::kDone)
      return o;
    for (std::size_t k = 0; k < n; ++k) {
      copy_bytes(all.data() + k * mine.size() + at, segment_->window(static_cast<int>(k), pieces_),
                 bytes);
    }
    ++pieces_;
    at += bytes;
  } while (at < mine.size());
  return Outcome::kDone;
}

std::string HostPart::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

}  // namespace holdfast::collective
