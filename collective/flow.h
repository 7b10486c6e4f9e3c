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

enum class FrameType : std::uint32_t {
  kMeeting,
  kLeft,
  kPartial,
  kResult,
  kCopy,
  kPrivate,
  kGreeting
};

// The header that comes before the bytes. It has the host's byte order, the same on all hosts.
struct Frame {
  static constexpr std::uint32_t kMagic = 0x32504648;  // "HFP2"
  std::uint32_t magic = kMagic;
  FrameType type = FrameType::kMeeting;
  std::uint64_t sequence = 0;  // The operation's number in its group.
  std::uint64_t number = 0;    // The number of the round (kMeeting) or of the piece.
  std::uint64_t bytes = 0;     // How many bytes follow.
  std::uint64_t head = 0;      // A digest of the members above: before it is right, none counts.
  std::uint64_t seal = 0;      // A digest of `head` and of the bytes that follow.
  bool operator==(const Frame&) const = default;

  void seal_with(std::span<const std::byte> bytes);
  [[nodiscard]] bool is_whole() const { return head == digest_of_head(); }
  // Requires: is_whole().
  [[nodiscard]] bool is_sealed_with(std::span<const std::byte> bytes) const;

 private:
  [[nodiscard]] std::uint64_t digest_of_head() const;
};
static_assert(sizeof(Frame) == 48);

// One thread at a time.
class Flow {
 public:
  enum class Direction : std::uint8_t { kRead, kWrite };

  Flow() = default;
  Flow(Link* link, Direction direction) : link_(link), direction_(direction) {}

  // Starts to write the frame and its bytes, and seals it; or, when reading, to expect exactly this
  // frame, sealed, and then to read its bytes.
  void begin(const Frame& frame, std::span<std::byte> bytes);
  // Starts to write or to read bytes without a frame.
  void begin(std::span<std::byte> bytes);
  [[nodiscard]] bool is_busy() const { return busy_; }
  [[nodiscard]] bool is_over() const { return over_; }
  // Whether the last begin() is complete. Returns true only once for each begin().
  [[nodiscard]] bool ended() { return std::exchange(ended_, false); }

  // Whether `bytes`, which have come, are those that the frame was sealed with. If not, the link is
  // told so, and over. For frames that were read without begin(frame, bytes).
  [[nodiscard]] bool is_true(const Frame& frame, std::span<const std::byte> bytes);

  void refuse() {  // What came can not have been sent: likewise.
    over_ = true;
    link_->damaged();
  }

  // Moves what can be moved now. kOver: the link is over, or something else came than was expected,
  // of which the link was told; nothing moves any more.
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
  bool is_framed_ = false;
  Frame frame_;     // The frame that is written or read.
  Frame expected_;  // Only when reading: what frame_ has to be.
  std::size_t frame_at_ = sizeof(Frame);
  std::span<std::byte> bytes_;
  std::size_t at_ = 0;
};

// Waits until one of the busy flows may go on, for at most `limit_ms` milliseconds.
void wait_for_any(std::span<Flow* const> flows, std::vector<pollfd>& scratch, int limit_ms);

}  // namespace holdfast::collective
