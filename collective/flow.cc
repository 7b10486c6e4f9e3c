#include "collective/flow.h"

#include "base/assert.h"

namespace holdfast::collective {

void Flow::begin(const Frame& frame, std::span<std::byte> bytes) {
  begin(bytes);
  frame_at_ = 0;
  (direction_ == Direction::kWrite ? frame_ : expected_) = frame;
  busy_ = true;
  ended_ = false;
}

void Flow::begin(std::span<std::byte> bytes) {
  HF_ASSERT(!busy_ && link_ != nullptr);
  frame_at_ = sizeof(Frame);
  bytes_ = bytes;
  at_ = 0;
  busy_ = !bytes.empty();
  ended_ = !busy_;
}

Link::State Flow::move_some(std::span<std::byte> bytes, std::size_t& done) {
  bool moved = false;
  while (done < bytes.size()) {
    const std::span rest = bytes.subspan(done);
    const Link::Moved m = direction_ == Direction::kWrite ? link_->write(rest) : link_->read(rest);
    if (m.state == Link::State::kOver) return m.state;
    if (m.state != Link::State::kMoved) {
      wants_to_write_ = m.state == Link::State::kWantsToWrite;
      return moved ? Link::State::kMoved : m.state;
    }
    done += m.bytes;
    moved = true;
  }
  return Link::State::kMoved;
}

Link::State Flow::move() {
  if (over_) return Link::State::kOver;
  Link::State state = Link::State::kMoved;
  if (frame_at_ < sizeof frame_) {
    state = move_some(std::as_writable_bytes(std::span(&frame_, 1)), frame_at_);
    const bool whole = frame_at_ == sizeof frame_;
    if (whole && direction_ == Direction::kRead && frame_ != expected_) state = Link::State::kOver;
    if (!whole && state != Link::State::kOver) return state;
  }
  if (state != Link::State::kOver && at_ < bytes_.size()) {
    const std::size_t before = at_;
    state = move_some(bytes_, at_);
    if (at_ > before && state != Link::State::kOver) state = Link::State::kMoved;
  }
  over_ = state == Link::State::kOver;
  if (!over_ && at_ == bytes_.size()) {
    busy_ = false;
    ended_ = true;
  }
  return state;
}

pollfd Flow::awaited() const {
  return {.fd = link_->descriptor(),
          .events = static_cast<short>(wants_to_write_ ? POLLOUT : POLLIN),
          .revents = 0};
}

void wait_for_any(std::span<Flow* const> flows, std::vector<pollfd>& scratch, int limit_ms) {
  scratch.clear();
  for (const Flow* flow : flows) {
    if (flow->is_busy()) scratch.push_back(flow->awaited());
  }
  // The result of poll() does not matter: the caller tries all flows again.
  (void)::poll(scratch.data(), scratch.size(), limit_ms);
}

}  // namespace holdfast::collective
