// Flow: what moves over one link in one direction: a frame, then its bytes, then the next frame.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collective/links.h"

namespace holdfast::collective {

enum class FrameType : std::uint32_t { kMeeting, kLeft, kPartial, kResult, kCopy, kPrivate };

// What comes before the bytes. Hosts of a job have the same byte order.
struct Frame {
  static constexpr std::uint32_t kMagic = 0x31504648;  // "HFP1"
  std::uint32_t magic = kMagic;
  FrameType type = FrameType::kMeeting;
  std::uint64_t sequence = 0;  // Of the operation.
  std::uint64_t number = 0;    // Of the round, or of the piece.
  std::uint64_t bytes = 0;     // That follow.
  bool operator==(const Frame&) const = default;
};
static_assert(sizeof(Frame) == 32);

// One thread at a time.
class Flow {
 public:
  enum class Direction : std::uint8_t { kRead, kWrite };

  Flow() = default;
  Flow(Link* link, Direction direction) : link_(link), direction_(direction) {}

  // Starts to write the frame and its bytes, or to read this very frame and then its bytes.
  void begin(const Frame& frame, std::span<std::byte> bytes);
  // The same of bytes alone.
  void begin(std::span<std::byte> bytes);
  [[nodiscard]] bool is_busy() const { return busy_; }
  [[nodiscard]] bool is_over() const { return over_; }
  // Whether what was begun has ended: true once.
  [[nodiscard]] bool ended() { return std::exchange(ended_, false); }

  // Moves what can be moved now. kOver: the link is, or another frame came; then nothing moves.
  [[nodiscard]] Link::State move();
  // What the last move() has waited for.
  [[nodiscard]] pollfd awaited() const;

 private:
  [[nodiscard]] Link::State move_some(std::span<std::byte> bytes, std::size_t& done);

  Link* link_ = nullptr;
  Direction direction_ = Direction::kRead;
  bool busy_ = false;
  bool ended_ = false;
  bool over_ = false;
  bool wants_to_write_ = false;
  Frame frame_;     // To be written, or being read.
  Frame expected_;  // When reading.
  std::size_t frame_at_ = sizeof(Frame);
  std::span<std::byte> bytes_;
  std::size_t at_ = 0;
};

// Waits until one of the busy flows may go on, for at most so many milliseconds.
void wait_for_any(std::span<Flow* const> flows, std::vector<pollfd>& scratch, int limit_ms);

}  // namespace holdfast::collective
