// For libFuzzer: decodes any bytes as the first message of a peer, and as its answer. What decodes
// must encode again, and the decoder must never wait for more bytes than the format allows.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/worker/peer_words.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace holdfast::runtime;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  require(missing_of_hello(bytes) <= 36 + kLongestGroupName);
  if (const auto hello = decode_hello(bytes)) {
    require(missing_of_hello(bytes) == 0 && encode(*hello) == bytes);
  }
  require(missing_of_head(bytes) <= 24 + 16 * kMostStateRanges);
  if (const auto head = decode_head(bytes)) {
    require(missing_of_head(bytes) == 0 && decode_head(encode(*head)).has_value());
  }
  return 0;
}
