// Flow: moves data over one link in one direction: a frame, then its bytes, then the next frame.
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

// The header that comes before the bytes. It has the host's byte order, the same on all hosts.
struct Frame {
  static constexpr std::uint32_t kMagic = 0x31504648;  // "HFP1"
  std::uint32_t magic = kMagic;
  FrameType type = FrameType::kMeeting;
  std::uint64_t sequence = 0;  // The operation's number in its group.
  std::uint64_t number = 0;    // The number of the round (kMeeting) or of the piece.
  std::uint64_t bytes = 0;     // How many bytes follow.
  bool operator==(const Frame&) const = default;
};
static_assert(sizeof(Frame) == 32);

// One thread at a time.
class Flow {
 public:
  enum class Direction : std::uint8_t { kRead, kWrite };

  Flow() = default;
  Flow(Link* link, Direction direction) : link_(link), direction_(direction) {}

  // Starts to write the frame and its bytes; or, when reading, to expect exactly this frame and
  // then to read its bytes.
  void begin(const Frame& frame, std::span<std::byte> bytes);
  // Starts to write or to read bytes without a frame.
  void begin(std::span<std::byte> bytes);
  [[nodiscard]] bool is_busy() const { return busy_; }
  [[nodiscard]] bool is_over() const { return over_; }
  // Whether the last begin() is complete. Returns true only once for each begin().
  [[nodiscard]] bool ended() { return std::exchange(ended_, false); }

  // Moves what can be moved now. kOver: the link is over, or another frame came than was expected;
  // nothing moves any more.
  [[nodiscard]] Link::State move();
  // What to poll for before the next move().
  [[nodiscard]] pollfd awaited() const;

 private:
  [[nodiscard]] Link::State move_some(std::span<std::byte> bytes, std::size_t& done);

  Link* link_ = nullptr;
  Direction direction_ = Direction::kRead;
  bool busy_ = false;
  bool ended_ = false;
  bool over_ = false;
  bool wants_to_write_ = false;
  Frame frame_;     // The frame that is written or read.
  Frame expected_;  // Only when reading: what frame_ has to be.
  std::size_t frame_at_ = sizeof(Frame);
  std::span<std::byte> bytes_;
  std::size_t at_ = 0;
};

// Waits until one of the busy flows may go on, for at most `limit_ms` milliseconds.
void wait_for_any(std::span<Flow* const> flows, std::vector<pollfd>& scratch, int limit_ms);

}  // namespace holdfast::collective
