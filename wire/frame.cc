#include "wire/frame.h"

#include <span>

#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "wire/codec.h"

namespace holdfast::wire {
namespace {

constexpr std::string_view kMagic = "HFW1";

template <class T>
void put(std::string& out, T value) {  // Little endian, whatever this machine is.
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>((std::uint64_t{value} >> (8 * i)) & 0xffU));
  }
}

std::uint32_t get_u32(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = (value << 8U) | static_cast<std::uint8_t>(bytes[i]);
  return value;
}

std::uint32_t checksum(std::uint8_t kind, std::string_view body) {
  return static_cast<std::uint32_t>(
      digest(std::as_bytes(std::span(body.data(), body.size())), kind));
}

}  // namespace

std::string frame(const Message& message) {
  const std::string body = encode(message);
  const std::uint8_t kind = kind_of(message);
  if (body.size() > kMaxBodyBytes || !is_within_bounds(message)) {
    const auto why = cat("this ", kind_name(kind), " of ", body.size(),
                         " bytes is within kMaxBodyBytes and the bounds of wire/fields.h");
    assertion_failed(why.c_str(), __FILE__, __LINE__);
  }
  std::string out;
  out.reserve(kFrameHeaderBytes + body.size());
  out += kMagic;
  put(out, kFrameVersion);
  put(out, kind);
  put(out, std::uint16_t{0});
  put(out, static_cast<std::uint32_t>(body.size()));
  put(out, checksum(kind, body));
  out += body;
  return out;
}

void FrameReader::feed(std::string_view bytes) {
  if (error_) return;
  // The unread rest moves to the front only when it is less than half of the buffer. So each byte
  // moves a few times at most.
  if (start_ > buffer_.size() / 2) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  buffer_ += bytes;
}

Error FrameReader::fail(Error error) {
  error_ = std::move(error);
  buffer_ = {};
  start_ = 0;
  return *error_;
}

Result<std::optional<Message>> FrameReader::next() {
  if (error_) return *error_;
  const std::string_view bytes = unread();
  if (bytes.size() < kFrameHeaderBytes) return std::optional<Message>();
  if (bytes.substr(0, 4) != kMagic) {
    return fail({Blame::kPeer,
                 "the peer does not speak Holdfast's protocol; check the address and the port"});
  }
  const auto version = static_cast<std::uint8_t>(bytes[4]);
  if (version != kFrameVersion || bytes[6] != 0 || bytes[7] != 0) {
    return fail(
        {Blame::kPeer, cat("the peer sent a frame of version ", version, ", this is version ",
                           kFrameVersion, "; use the same version of Holdfast on all hosts")});
  }
  const auto kind = static_cast<std::uint8_t>(bytes[5]);
  const std::size_t length = get_u32(bytes.substr(8, 4));
  if (length > kMaxBodyBytes) {
    return fail({Blame::kPeer, cat("the peer announced a message of ", length,
                                   " bytes, the limit is ", kMaxBodyBytes)});
  }
  if (bytes.size() < kFrameHeaderBytes + length) return std::optional<Message>();
  const std::string_view body = bytes.substr(kFrameHeaderBytes, length);
  if (get_u32(bytes.substr(12, 4)) != checksum(kind, body)) {
    return fail({Blame::kWorld,
                 cat("a ", kind_name(kind), " was damaged on its way: its checksum is wrong")});
  }
  Result<Message> message = decode(kind, body);
  if (!message) return fail(message.error());
  start_ += kFrameHeaderBytes + length;
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
  }
  return std::optional<Message>(std::move(*message));
}

}  // namespace holdfast::wire
