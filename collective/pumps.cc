#include "collective/pumps.h"

#include <algorithm>
#include <cstring>

namespace holdfast::collective {
namespace {

// In the number of a Flood's frame, the root's rank is above the piece's number.
constexpr int kRootShift = 40;

}  // namespace

// ---- pieces -------------------------------------------------------------------------------------

std::size_t Pieces::number(std::size_t index) const {
  const std::size_t first = begin / piece_bytes;
  return first + (lane + lanes - first % lanes) % lanes + index * lanes;
}

std::size_t Pieces::count() const {
  const std::size_t end = (begin + bytes + piece_bytes - 1) / piece_bytes;
  const std::size_t first = number(0);
  return first < end ? (end - first + lanes - 1) / lanes : 0;
}

std::size_t Pieces::size(std::size_t index) const {
  return std::min(piece_bytes, bytes - at(index));
}

// ---- reductions ---------------------------------------------------------------------------------

Chain::Chain(const SpanMap& map, const std::vector<Link*>& hops, const Terms& terms,
             Buffers& buffers, Ways ways)
    : terms_(terms), ways_(ways), count_(terms.pieces.count()) {
  const auto last = map.runs.size() - 1;
  for (std::size_t s = 0; s <= last; ++s) {
    if (map.runs[s].host != map.host) continue;
    Stage& stage = stages_.emplace_back();
    for (int r = map.runs[s].begin; r < map.runs[s].end; ++r) {
      const auto local = static_cast<std::size_t>(map.local_of[static_cast<std::size_t>(r)]);
      stage.rows.push_back(terms.rows[local]);
    }
    if (s > 0) stage.before = hops[s - 1];
    if (s < last) stage.behind = hops[s];
  }
  buffers.resize(std::max(buffers.size(), stages_.size() * kSlots));
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = stages_[i];
    for (std::size_t k = 0; k < kSlots; ++k) stage.slots[k] = &buffers[i * kSlots + k];
    const auto flow = [&](Flow& one, Link* link, Flow::Direction direction) {
      if (link == nullptr) return;
      one = Flow(link, direction);
      flows_.push_back(&one);
    };
    if (ways_ != Ways::kBack) {
      flow(stage.partial_in, stage.before, Flow::Direction::kRead);
      flow(stage.partial_out, stage.behind, Flow::Direction::kWrite);
    }
    if (sends_results(stage)) {
      flow(stage.result_in, stage.behind, Flow::Direction::kRead);
      flow(stage.result_out, stage.before, Flow::Direction::kWrite);
    }
  }
}

Frame Chain::frame(FrameType type, std::size_t index, std::size_t bytes) const {
  return {.type = type,
          .sequence = terms_.sequence,
          .number = terms_.pieces.number(index),
          .bytes = bytes};
}

// Memory for the partial result of this piece, on its way through this host.
std::span<std::byte> Chain::slot(Stage& stage, std::size_t index) const {
  std::vector<std::byte>& memory = *stage.slots[index % kSlots];
  const Element e = terms_.how.element;
  const std::size_t most = terms_.pieces.piece_bytes / size_of(e) * partial_size(e);
  if (memory.size() < most) memory.resize(most);
  return std::span(memory).first(terms_.pieces.size(index) / size_of(e) * partial_size(e));
}

// Whether this pump drives the stage's results. The last run's results are complete on the way
// there, so the pump of that way also sends them.
bool Chain::sends_results(const Stage& stage) const {
  return ways_ == Ways::kBoth || (ways_ == Ways::kBack) == (stage.behind != nullptr);
}

// Whether the partial is a row as it is: the first run has one row only.
bool Chain::sends_row(const Stage& stage) const {
  return stage.before == nullptr && stage.rows.size() == 1 && is_own_partial(terms_.how.element);
}

// Copies a piece of the result, which is in outs[0], to the other local ranks.
void Chain::spread(std::size_t index) {
  const std::size_t at = terms_.pieces.at(index);
  for (std::size_t k = 1; k < terms_.outs.size(); ++k) {
    std::memcpy(terms_.outs[k] + at, terms_.outs[0] + at, terms_.pieces.size(index));
  }
}

bool Chain::receive(Stage& stage) {
  bool any = false;
  if (stage.partial_in.ended()) {
    ++stage.received;
    any = true;
  }
  const std::size_t left = stage.behind != nullptr ? stage.sent : stage.reduced;
  if (!stage.partial_in.is_busy() && stage.received < count_ && stage.received < left + kSlots) {
    const std::span into = slot(stage, stage.received);
    stage.partial_in.begin(frame(FrameType::kPartial, stage.received, into.size()), into);
    any = true;
  }
  return any;
}

bool Chain::reduce(Stage& stage) {
  const std::size_t index = stage.reduced;
  if (index == count_ || (stage.before != nullptr && stage.received <= index)) return false;
  if (stage.behind != nullptr && index >= stage.sent + kSlots) return false;
  ++stage.reduced;
  if (sends_row(stage)) return true;
  const std::size_t at = terms_.pieces.at(index);
  const std::size_t size = terms_.pieces.size(index);
  piece_rows_.clear();
  for (const std::byte* row : stage.rows) piece_rows_.push_back(row + at);
  const std::span partial = slot(stage, index);
  const bool last = stage.behind == nullptr;
  reduce_part(last ? terms_.outs[0] + at : partial.data(),
              stage.before != nullptr ? partial.data() : nullptr, piece_rows_,
              size / size_of(terms_.how.element), terms_.how, last ? terms_.all : 0);
  if (last) {
    spread(index);
    ++stage.got;
  }
  return true;
}

bool Chain::return_results(Stage& stage) {
  bool any = false;
  const auto result = [&](std::size_t index) {
    return std::span(terms_.outs[0] + terms_.pieces.at(index), terms_.pieces.size(index));
  };
  if (stage.behind != nullptr) {
    if (stage.result_in.ended()) {
      spread(stage.got++);
      any = true;
    }
    // With one thread for both ways, a result is not read before its partial was sent.
    const std::size_t awaited = ways_ == Ways::kBoth ? stage.sent : count_;
    if (!stage.result_in.is_busy() && stage.got < awaited) {
      const std::span into = result(stage.got);
      stage.result_in.begin(frame(FrameType::kResult, stage.got, into.size()), into);
      any = true;
    }
  }
  if (stage.before == nullptr) return any;
  if (stage.result_out.ended()) {
    ++stage.passed;
    any = true;
  }
  if (!stage.result_out.is_busy() && stage.passed < stage.got) {
    const std::span from = result(stage.passed);
    stage.result_out.begin(frame(FrameType::kResult, stage.passed, from.size()), from);
    any = true;
  }
  return any;
}

bool Chain::send_partials(Stage& stage) {
  bool any = stage.before != nullptr && receive(stage);
  any = reduce(stage) || any;
  if (stage.behind != nullptr) {
    if (stage.partial_out.ended()) {
      ++stage.sent;
      any = true;
    }
    if (!stage.partial_out.is_busy() && stage.sent < stage.reduced) {
      const std::size_t at = terms_.pieces.at(stage.sent);
      const std::span from = sends_row(stage)
                                 ? std::span(const_cast<std::byte*>(stage.rows[0]) + at,
                                             terms_.pieces.size(stage.sent))
                                 : slot(stage, stage.sent);
      stage.partial_out.begin(frame(FrameType::kPartial, stage.sent, from.size()), from);
      any = true;
    }
  }
  return any;
}

bool Chain::advance() {
  bool any = false;
  for (Stage& stage : stages_) {
    if (ways_ != Ways::kBack) any = send_partials(stage) || any;
    if (sends_results(stage)) any = return_results(stage) || any;
  }
  return any;
}

bool Chain::is_done(const Stage& stage) const {
  if (!sends_results(stage)) return stage.sent == count_;
  return stage.got == count_ && (stage.before == nullptr || stage.passed == count_);
}

bool Chain::is_done() const {
  return std::all_of(stages_.begin(), stages_.end(),
                     [this](const Stage& stage) { return is_done(stage); });
}

// ---- copies -------------------------------------------------------------------------------------

Flood::Flood(const SpanMap& map, const std::vector<Link*>& hops, const Terms& terms)
    : terms_(terms), count_(terms.pieces.count()) {
  const std::vector<Run>& runs = map.runs;
  const int root_host = map.host_of[static_cast<std::size_t>(terms.root)];
  std::size_t origin = 0;
  while (runs[origin].end <= terms.root) ++origin;
  for (std::size_t s = 0; s < runs.size(); ++s) {
    if (runs[s].host != map.host) continue;
    Stage& stage = stages_.emplace_back();
    if (map.host != root_host) {
      stage.source = hops[s > origin ? s - 1 : s];
      stage.in = Flow(stage.source, Flow::Direction::kRead);
    } else {
      stage.received = count_;
    }
    // The root's host has the data already, so nothing is sent to its other runs.
    if (s >= origin && s + 1 < runs.size() && runs[s + 1].host != root_host) {
      stage.outs.push_back({Flow(hops[s], Flow::Direction::kWrite)});
    }
    if (s <= origin && s > 0 && runs[s - 1].host != root_host) {
      stage.outs.push_back({Flow(hops[s - 1], Flow::Direction::kWrite)});
    }
  }
  for (Stage& stage : stages_) {
    if (stage.source != nullptr) flows_.push_back(&stage.in);
    for (Out& out : stage.outs) flows_.push_back(&out.flow);
  }
}

std::span<std::byte> Flood::piece(std::size_t index) const {
  return {terms_.place + terms_.pieces.at(index), terms_.pieces.size(index)};
}

Frame Flood::frame(std::size_t index) const {
  return {
      .type = FrameType::kCopy,
      .sequence = terms_.sequence,
      .number = static_cast<std::uint64_t>(terms_.root) << kRootShift | terms_.pieces.number(index),
      .bytes = terms_.pieces.size(index)};
}

bool Flood::advance() {
  bool any = false;
  for (Stage& stage : stages_) {
    if (stage.in.ended()) {
      ++stage.received;
      any = true;
    }
    if (stage.source != nullptr && !stage.in.is_busy() && stage.received < count_) {
      stage.in.begin(frame(stage.received), piece(stage.received));
      any = true;
    }
    for (Out& out : stage.outs) {
      if (out.flow.ended()) {
        ++out.sent;
        any = true;
      }
      if (!out.flow.is_busy() && out.sent < stage.received) {
        out.flow.begin(frame(out.sent), piece(out.sent));
        any = true;
      }
    }
  }
  return any;
}

bool Flood::is_done() const {
  return std::all_of(stages_.begin(), stages_.end(), [this](const Stage& stage) {
    return stage.received == count_ &&
           std::all_of(stage.outs.begin(), stage.outs.end(),
                       [this](const Out& out) { return out.sent == count_; });
  });
}

}  // namespace holdfast::collective
