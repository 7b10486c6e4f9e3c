#include "collective/flow.h"

#include "base/assert.h"
#include "base/digest.h"

namespace holdfast::collective {

std::uint64_t Frame::digest_of_head() const {
  return digest(std::as_bytes(std::span(this, 1)).first(offsetof(Frame, head)));
}

void Frame::seal_with(std::span<const std::byte> data) {
  head = digest_of_head();
  seal = digest(data, head);
}

bool Frame::is_sealed_with(std::span<const std::byte> data) const {
  return seal == digest(data, head);
}

void Flow::begin(const Frame& frame, std::span<std::byte> bytes) {
  begin(bytes);
  frame_at_ = 0;
  is_framed_ = true;
  (direction_ == Direction::kWrite ? frame_ : expected_) = frame;
  if (direction_ == Direction::kWrite) frame_.seal_with(bytes);
  busy_ = true;
  ended_ = false;
}

void Flow::begin(std::span<std::byte> bytes) {
  HF_ASSERT(!busy_ && link_ != nullptr);
  frame_at_ = sizeof(Frame);
  is_framed_ = false;
  bytes_ = bytes;
  at_ = 0;
  busy_ = !bytes.empty();
  ended_ = !busy_;
}

bool Flow::is_true(const Frame& frame, std::span<const std::byte> bytes) {
  if (frame.is_sealed_with(bytes)) return true;
  refuse();
  return false;
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
    if (whole && direction_ == Direction::kRead) {
      expected_.head = frame_.head;
      expected_.seal = frame_.seal;
      if (!frame_.is_whole() || frame_ != expected_) {
        refuse();
        state = Link::State::kOver;
      }
    }
    if (!whole && state != Link::State::kOver) return state;
  }
  if (state != Link::State::kOver && at_ < bytes_.size()) {
    const std::size_t before = at_;
    state = move_some(bytes_, at_);
    if (at_ > before && state != Link::State::kOver) state = Link::State::kMoved;
  }
  over_ = state == Link::State::kOver;
  const bool has_all = !over_ && at_ == bytes_.size();
  if (has_all && is_framed_ && direction_ == Direction::kRead && !is_true(frame_, bytes_)) {
    return Link::State::kOver;
  }
  if (has_all) {
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
