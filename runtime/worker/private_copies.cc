#include "runtime/worker/private_copies.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "core/planner/holders.h"

namespace holdfast::runtime {
namespace {

using collective::Flow;
using collective::Frame;
using collective::Link;

constexpr const char* kGroup = "private state";  // No other group has a blank in its name.
constexpr int kLookMs = 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;

// What a rank says first to its holder.
struct Greeting {
  std::uint64_t bytes = 0;  // How many private bytes it has.
  std::uint64_t version = 0;
};
// The answer: whether the holder has that version.
struct Answer {
  std::uint64_t has_it = 0;
};

// What comes first on a link, in either direction.
Frame frame_of(Rank speaker, std::size_t bytes) {
  return {.type = collective::FrameType::kGreeting,
          .number = static_cast<std::uint64_t>(speaker),
          .bytes = bytes};
}

// Two channels, because two ranks may be each other's holders.
std::uint32_t channel_of(Rank ward, Rank holder) {
  return ward < holder ? 0 : 1;
}

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Frame frame_of_table(Rank ward, Version version) {
  return {.type = collective::FrameType::kPrivate,
          .sequence = version,
          .number = static_cast<std::uint64_t>(ward),
          .bytes = sizeof(arena::Parts)};
}

std::uint64_t seal_of(const std::vector<std::span<std::byte>>& parts) {
  std::uint64_t seal = parts.size();
  for (const auto& part : parts) seal = digest(part, seal);
  return seal;
}

// Call it before the bytes of version v are written: the version that they overwrite no longer
// counts.
void expect(arena::Arena& held, Version v) {
  if (!held.fresh() && v == held.version() + 1) {
    held.unstage();
  } else {
    held.invalidate();
  }
}

// Call it when all bytes of version v have come. A version that follows the held one is staged.
void take(arena::Arena& held, Version v, const arena::Parts& used) {
  constexpr arena::Range kNothing[] = {{0, 0}};  // An empty list would mean all bytes.
  const auto parts = used.count == 0 ? std::span(kNothing) : used.all();
  if (held.fresh()) {
    held.begin(v, {}, parts);
  } else {
    held.stage(v, {.private_bytes = held.private_bytes(v), .used = parts});
  }
}

}  // namespace

// One direction of a link: what moves now, and what follows it.
struct PrivateCopies::Stream {
  Flow flow;
  std::vector<std::span<std::byte>> rest;  // In reverse order.

  // The parts and their seal are to follow.
  void follow(const std::vector<std::span<std::byte>>& parts, std::uint64_t& seal) {
    rest.assign(1, bytes_of(seal));
    rest.insert(rest.end(), parts.rbegin(), parts.rend());
  }
  // Begins what follows, if nothing moves. False: all has moved.
  bool go_on() {
    while (!flow.is_busy() && !rest.empty()) {
      flow.begin(rest.back());
      rest.pop_back();
    }
    return flow.is_busy();
  }
};

struct PrivateCopies::Ward {
  Rank rank = kNoRank;
  Stream in, out;
  Greeting greeting;
  Answer answer;
  arena::Parts table;  // Which bytes of a version follow.
  bool awaits_table = false;
  std::vector<std::span<std::byte>> places;  // Where they come to,
  std::uint64_t seal = 0;                    // and what their digest has to be.
  arena::Arena* held = nullptr;
};

PrivateCopies::PrivateCopies(Options options, StateStore& store)
    : options_(std::move(options)), store_(store) {}

PrivateCopies::~PrivateCopies() = default;

Result<std::unique_ptr<PrivateCopies>> PrivateCopies::join(const Options& options,
                                                           StateStore& store) {
  std::unique_ptr<PrivateCopies> made(new PrivateCopies(options, store));
  const auto holders = planner::holders(options.layout.domain_of);
  std::vector<Rank> wards;
  for (std::size_t rank = 0; rank < holders.size(); ++rank) {
    if (holders[rank] == options.rank) wards.push_back(static_cast<Rank>(rank));
  }
  const Rank holder = holders.at(static_cast<std::size_t>(options.rank));
  if (auto linked = made->link(holder, wards); !linked) return linked.error();
  const Version version = store.holding().version;
  bool holder_has_it = true;
  if (auto greeted = made->greet(version); !greeted) return greeted.error();
  if (auto told = made->answer(version, holder_has_it); !told) return told.error();
  const bool gives = !holder_has_it;
  if (auto seeded = made->give_and_take(version, gives, false); !seeded) return seeded.error();
  for (const auto& ward : made->wards_) ward->held->settle(version);  // This version is committed.
  return made;
}

Status PrivateCopies::link(Rank holder, const std::vector<Rank>& wards) {
  std::vector<collective::Wanted> wanted;
  if (holder != kNoRank) {
    wanted.push_back({holder, channel_of(options_.rank, holder), true});
  }
  for (const Rank ward : wards) wanted.push_back({ward, channel_of(ward, options_.rank), false});
  auto made = options_.layout.links->make(kGroup, options_.generation, wanted, options_.deadline,
                                          options_.stop);
  if (!made) return made.error();
  links_ = *std::move(made);
  std::size_t next = 0;
  holder_ = holder;
  if (holder != kNoRank) {
    Link* link = links_[next++].get();
    to_holder_ = std::make_unique<Stream>(Stream{Flow(link, Flow::Direction::kWrite), {}});
    from_holder_ = std::make_unique<Stream>(Stream{Flow(link, Flow::Direction::kRead), {}});
    streams_ = {to_holder_.get(), from_holder_.get()};
  }
  for (const Rank rank : wards) {
    auto& ward = wards_.emplace_back(std::make_unique<Ward>());
    Link* link = links_[next++].get();
    ward->rank = rank;
    ward->in.flow = Flow(link, Flow::Direction::kRead);
    ward->out.flow = Flow(link, Flow::Direction::kWrite);
    streams_.insert(streams_.end(), {&ward->in, &ward->out});
  }
  for (Stream* stream : streams_) flows_.push_back(&stream->flow);
  on_stop_.emplace(options_.stop, [this] { cut(); });
  return {};
}

Status PrivateCopies::greet(Version version) {
  Greeting mine{store_.own_bytes(), version};
  if (to_holder_) to_holder_->flow.begin(frame_of(options_.rank, sizeof mine), bytes_of(mine));
  for (const auto& ward : wards_) {
    ward->in.flow.begin(frame_of(ward->rank, sizeof(Greeting)), bytes_of(ward->greeting));
  }
  return drive();
}

Status PrivateCopies::answer(Version version, bool& holder_has_it) {
  for (const auto& ward : wards_) {
    const auto [bytes, theirs] = ward->greeting;
    if (theirs != version || bytes > kMostBytes) {
      return Error{Blame::kPeer,
                   cat("rank ", ward->rank, " is at version ", theirs, " with ", bytes,
                       " private bytes, and rank ", options_.rank, " at version ", version)};
    }
    auto held = store_.hold_for(ward->rank, bytes);
    if (!held) return Error{Blame::kUser, held.error().what};
    ward->held = *held;
    ward->held->settle(version);
    ward->answer.has_it = ward->held->has(version) ? 1 : 0;
    ward->out.flow.begin(frame_of(options_.rank, sizeof(Answer)), bytes_of(ward->answer));
  }
  Answer of_holder{1};
  if (from_holder_) {
    from_holder_->flow.begin(frame_of(holder_, sizeof of_holder), bytes_of(of_holder));
  }
  auto told = drive();
  holder_has_it = of_holder.has_it != 0;
  return told;
}

Status PrivateCopies::exchange(Version n) {
  if (is_over_) return end("it could not before");
  return give_and_take(n, to_holder_ != nullptr, true);
}

Status PrivateCopies::give_and_take(Version version, bool gives, bool takes_all) {
  arena::Parts table;
  if (gives) give(version, table);
  std::vector<Ward*> awaited;
  for (const auto& ward : wards_) {
    if (!takes_all && ward->answer.has_it != 0) continue;
    expect(*ward->held, version);
    ward->in.flow.begin(frame_of_table(ward->rank, version), bytes_of(ward->table));
    ward->awaits_table = true;
    version_ = version;
    awaited.push_back(ward.get());
  }
  if (auto moved = drive(); !moved) return moved;
  for (Ward* ward : awaited) {
    if (ward->seal != seal_of(ward->places)) {
      ward->in.flow.refuse();
      return end("what has come is not what a rank has sent");
    }
    take(*ward->held, version, ward->table);
  }
  return {};
}

// Begins to send `table`, which must live until drive() has returned, and then the parts in it.
void PrivateCopies::give(Version version, arena::Parts& table) {
  auto parts = store_.own_parts(version);
  HF_ASSERT(parts.size() <= arena::kMostParts);
  table.count = parts.size();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    table.ranges[i] = {parts[i].offset, parts[i].bytes.size()};
  }
  std::vector<std::span<std::byte>> places;
  for (const auto& part : parts) places.push_back(part.bytes);
  seal_ = seal_of(places);
  to_holder_->follow(places, seal_);
  to_holder_->flow.begin(frame_of_table(options_.rank, version), bytes_of(table));
}

// The ward's table has come: assigns memory to the bytes that follow. False: they would not fit.
bool PrivateCopies::take_table(Ward& ward) {
  ward.awaits_table = false;
  const auto place = ward.held->private_bytes(version_);
  if (!ward.table.fit(place.size())) return false;
  ward.places.clear();
  for (const auto& [offset, bytes] : ward.table.all()) {
    ward.places.push_back(place.subspan(offset, bytes));
  }
  ward.in.follow(ward.places, ward.seal);
  return true;
}

// Moves bytes until all that was begun has ended, and all that follows it.
Status PrivateCopies::drive() {
  std::vector<pollfd> scratch;
  for (;;) {
    bool moved = false;
    for (Flow* flow : flows_) {
      if (!flow->is_busy()) continue;
      const Link::State state = flow->move();
      if (state == Link::State::kOver || options_.stop.stop_requested()) {
        return end("a link has ended");
      }
      moved = moved || state == Link::State::kMoved;
    }
    for (const auto& ward : wards_) {
      if (!ward->awaits_table || ward->in.flow.is_busy()) continue;
      if (!take_table(*ward)) return end("a rank has sent no such bytes");
    }
    bool busy = false;
    for (Stream* stream : streams_) busy = stream->go_on() || busy;
    if (!busy) return {};
    if (moved) continue;
    if (options_.must_stop && options_.must_stop()) return end("the group has ended");
    collective::wait_for_any(flows_, scratch, kLookMs);
  }
}

Error PrivateCopies::end(const char* why) {
  cut();
  is_over_ = true;
  return {Blame::kWorld, cat("private state can not be passed on: ", why)};
}

void PrivateCopies::cut() {
  for (const auto& link : links_) link->cut();
}

}  // namespace holdfast::runtime
