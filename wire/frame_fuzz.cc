// Fuzzes frames. The first byte says in what pieces the rest is fed. Then the rest is fed at once,
// and both must give the same messages. A decoded message must encode and decode to itself.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "wire/codec.h"
#include "wire/frame.h"

namespace {

using holdfast::wire::FrameReader;

std::vector<std::string> read(std::string_view bytes, std::size_t piece) {
  FrameReader reader;
  std::vector<std::string> seen;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    reader.feed(bytes.substr(at, piece));
    while (true) {
      const auto next = reader.next();
      if (!next) {
        seen.push_back(next.error().what);
        return seen;
      }
      if (!next->has_value()) break;
      seen.push_back(holdfast::wire::frame(**next));
    }
  }
  return seen;
}

void decode_and_return(std::uint8_t kind, std::string_view body) {
  const auto first = holdfast::wire::decode(kind, body);
  if (!first) return;
  const std::string bytes = holdfast::wire::encode(*first);
  const auto second = holdfast::wire::decode(kind, bytes);
  HF_ASSERT(second.has_value() && holdfast::wire::encode(*second) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  HF_ASSERT(read(bytes, 1 + data[0] % 64U) == read(bytes, bytes.size() + 1));
  decode_and_return(data[0], bytes);
  (void)holdfast::wire::decode_formation(bytes);
  (void)holdfast::wire::decode_remark(bytes);
  return 0;
}
