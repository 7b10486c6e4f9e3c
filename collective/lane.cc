#include "collective/lane.h"

#include <algorithm>
#include <array>
#include <system_error>
#include <thread>
#include <utility>

namespace holdfast::collective {
namespace {

// Bounds of the bytes that go over a link at a time in a large operation.
constexpr std::size_t kLinkPieceMax = std::size_t{256} << 10;
constexpr std::size_t kLinkPieceMin = std::size_t{32} << 10;
constexpr std::size_t kLinkPieceUnit = 4096;
constexpr std::size_t kPiecesWorthAThread = 3;

std::size_t piece_bytes(std::size_t half, int lanes) {
  const std::size_t wanted = half / (2 * static_cast<std::size_t>(lanes));
  return std::min(
      half, std::clamp(wanted / kLinkPieceUnit * kLinkPieceUnit, kLinkPieceMin, kLinkPieceMax));
}

}  // namespace

Lane::Lane(const SpanMap& map, std::size_t half_bytes, SpanStop& stop)
    : map_(map),
      stop_(stop),
      piece_bytes_(piece_bytes(half_bytes, map.lanes)),
      portion_bytes_(half_bytes / piece_bytes_ * piece_bytes_),
      hops_(map.runs.size() - 1) {}

void Lane::use(std::vector<Link*> hops) {
  hops_ = std::move(hops);
  if (!is_worth_two_threads()) return;
  try {
    two_threads_ = std::make_unique<os::Pool>(2);
  } catch (const std::system_error&) {  // No second thread: one does it all, more slowly.
  }
}

// Whether a second thread pays: a run of this host lies between two others, two threads can use the
// links to these, and there are two cores for each lane.
bool Lane::is_worth_two_threads() const {
  if (std::thread::hardware_concurrency() < 2 * static_cast<unsigned>(map_.lanes)) return false;
  const auto is_own = [&](std::size_t hop) { return hops_[hop] != nullptr; };
  bool between = false;
  for (std::size_t s = 0; s + 1 < hops_.size(); ++s) {
    between = between || (is_own(s) && is_own(s + 1) && map_.runs[s + 1].host == map_.host);
  }
  return between && std::all_of(hops_.begin(), hops_.end(),
                                [](const Link* hop) { return hop == nullptr || hop->is_duplex(); });
}

Pieces Lane::pieces(std::size_t total, std::size_t begin, std::size_t bytes) const {
  return {.total = total,
          .piece_bytes = piece_bytes_,
          .begin = begin,
          .bytes = bytes,
          .lane = static_cast<std::size_t>(map_.local),
          .lanes = static_cast<std::size_t>(map_.lanes)};
}

bool Lane::reduce(const Chain::Terms& terms) {
  if (!map_.leads_lane()) return true;
  if (two_threads_ == nullptr || terms.pieces.count() < kPiecesWorthAThread) {
    Chain chain(map_, hops_, terms, buffers_, Chain::Ways::kBoth);
    return drive(chain, polled_);
  }
  Chain there(map_, hops_, terms, buffers_, Chain::Ways::kThere);
  Chain back(map_, hops_, terms, buffers_, Chain::Ways::kBack);
  std::array<bool, 2> done{};
  two_threads_->run(2, [&](std::size_t way) {
    done[way] = way == 0 ? drive(there, polled_) : drive(back, polled_back_);
    if (!done[way]) stop_.abort();  // So that the other thread ends, too.
  });
  return done[0] && done[1];
}

bool Lane::flood(const Flood::Terms& terms) {
  if (!map_.leads_lane()) return true;
  Flood pump(map_, hops_, terms);
  return drive(pump, polled_);
}

// Runs the pump until it is done. False: the operation was stopped before.
bool Lane::drive(Pump& pump, std::vector<pollfd>& polled) const {
  for (;;) {
    bool moved = pump.advance();
    if (pump.is_done()) return true;
    for (Flow* flow : pump.flows()) {
      if (!flow->is_busy()) continue;
      const Link::State state = flow->move();
      if (state == Link::State::kOver) return false;
      moved = moved || state == Link::State::kMoved;
    }
    if (stop_.must_stop()) return false;
    if (!moved) wait_for_any(pump.flows(), polled, kLookMs);
  }
}

}  // namespace holdfast::collective
