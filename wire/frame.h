// Frames: how messages stand in a stream of bytes. docs/formats/frames.md has the byte table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "wire/messages.h"

namespace holdfast::wire {

inline constexpr std::size_t kFrameHeaderBytes = 16;
inline constexpr std::size_t kMaxBodyBytes = std::size_t{16} << 20;
inline constexpr std::uint8_t kFrameVersion = 1;

// The message with its header, ready to be sent. Requires: its body is within kMaxBodyBytes, and
// its lists and texts are within their bounds (wire/fields.h).
std::string frame(const Message& message);

// Cuts a stream of bytes into messages, however the bytes come in. For one thread at a time.
//
// After every feed(), call next() until it gives nothing. Then the reader holds less than one
// frame. An error is final, because nobody knows where the next frame begins. Every next() gives it
// again.
class FrameReader {
 public:
  void feed(std::string_view bytes);

  // The next whole message, or nothing if more bytes are needed. Error{kPeer} if the bytes are no
  // frame of ours, are too long, or hold a malformed message; Error{kWorld} if they were damaged on
  // their way.
  Result<std::optional<Message>> next();

  [[nodiscard]] std::size_t buffered_bytes() const { return buffer_.size() - start_; }

 private:
  Error fail(Error error);
  [[nodiscard]] std::string_view unread() const { return std::string_view(buffer_).substr(start_); }

  std::string buffer_;
  std::size_t start_ = 0;  // The bytes before it were returned already.
  std::optional<Error> error_;
};

}  // namespace holdfast::wire
