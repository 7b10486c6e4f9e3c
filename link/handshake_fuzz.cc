// For libFuzzer: any bytes, in any pieces, for one end of a handshake. They must not prove a peer,
// let a client begin TLS, or break this end.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "link/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using holdfast::link::Handshake;
  using State = Handshake::State;
  if (size < 2) return 0;
  const bool is_server = data[0] % 2 == 0;
  const holdfast::link::Terms terms{
      .job = "job", .token = "nobody knows it", .under_tls = data[0] / 2 % 2 == 0};
  auto end = is_server ? Handshake::of_server(terms, {})
                       : Handshake::of_client(terms, holdfast::wire::PeerKind::kWorker, {});
  const std::size_t piece = 1 + data[1] % 40U;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  while (!bytes.empty() && end.state() == State::kUnderWay) {
    std::string_view part = bytes.substr(0, piece);
    const std::size_t given = part.size();
    (void)end.take(part);
    bytes.remove_prefix(given - part.size());
    // A client begins TLS with any server, and believes it no more for that.
    if (end.state() == State::kOpened && !is_server) end.go_on_under_tls("of this connection");
    (void)end.to_send();
    (void)end.why_closed();
  }
  if (end.is_opened() || end.state() == State::kProven) std::abort();
  return 0;
}
