// Whatever bytes come to an end of a handshake, in whatever pieces: it is not proven, and it does
// not break. For libFuzzer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "link/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using holdfast::link::Handshake;
  if (size < 2) return 0;
  const holdfast::link::Terms terms{.job = "job", .token = "nobody knows it", .binding = ""};
  auto end = data[0] % 2 == 0 ? Handshake::of_server(terms, {})
                              : Handshake::of_client(terms, holdfast::wire::PeerKind::kWorker, {});
  const std::size_t piece = 1 + data[1] % 40U;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  while (!bytes.empty() && end.state() == Handshake::State::kUnderWay) {
    std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    (void)end.take(part);
    (void)end.to_send();
    (void)end.why_closed();
  }
  if (end.state() == Handshake::State::kProven) std::abort();
  return 0;
}
