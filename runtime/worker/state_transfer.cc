#include "runtime/worker/state_transfer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "os/errors.h"

namespace holdfast::runtime {
namespace {

using Outcome = io::Stream::Outcome;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kPiece = std::size_t{1} << 18;  // Bytes at a time.

// 8 bytes, little-endian.
std::string eight_bytes_of(const Digest& digest) {
  std::uint64_t number = digest.value();
  std::string out;
  for (int i = 0; i < 8; ++i, number >>= 8) out += static_cast<char>(number & 0xffU);
  return out;
}

// Moves bytes over one stream, and waits where it has to.
class Mover {
 public:
  Mover(io::PeerStream& stream, const Patience& patience)
      : stream_(stream), patience_(patience), cut_(patience.cancel, [&stream] { stream.cut(); }) {}

  Status write(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto [outcome, count] = stream_.stream().write(bytes);
      if (outcome == Outcome::kDone) {
        bytes.remove_prefix(count);
      } else if (auto waited = wait(outcome); !waited) {
        return waited;
      }
    }
    return {};
  }

  Status read(std::span<char> into) {
    while (!into.empty()) {
      const auto [outcome, count] = stream_.stream().read(into);
      if (outcome == Outcome::kDone) {
        into = into.subspan(count);
      } else if (auto waited = wait(outcome); !waited) {
        return waited;
      }
    }
    return {};
  }

 private:
  Status wait(Outcome wanted) {
    if (patience_.cancel.stop_requested()) return error("it was cancelled");
    if (wanted == Outcome::kEnd) return error("the other end has closed the connection");
    if (wanted == Outcome::kBroken) return stream_.stream().why_broken(stream_.peer());
    const auto until = Clock::now() + patience_.limit;
    pollfd one{.fd = stream_.descriptor(),
               .events = static_cast<short>(wanted == Outcome::kWantsToWrite ? POLLOUT : POLLIN),
               .revents = 0};
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      const int ready =
          ::poll(&one, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
      if (ready > 0) return {};
      if (ready < 0 && errno != EINTR) return os::system_error("poll() of a stream", errno);
      if (Clock::now() >= until) return error("nothing moves any more");
    }
  }

  [[nodiscard]] Error error(const char* what) const {
    return {Blame::kWorld, cat(stream_.peer(), ": ", what)};
  }

  io::PeerStream& stream_;
  const Patience& patience_;
  std::stop_callback<std::function<void()>> cut_;
};

Status send_range(Mover& mover, Digest& digest, const StateFile& state, StateRange range,
                  std::string& piece) {
  while (range.length > 0) {
    const auto wanted = std::min<std::uint64_t>(range.length, kPiece);
    const ssize_t got =
        ::pread(state.file.get(), piece.data(), wanted, static_cast<off_t>(range.offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os::system_error("the state can not be read", errno);
    if (got == 0) return Error{Blame::kWorld, "the state's file is shorter than its ranges"};
    const std::string_view bytes(piece.data(), static_cast<std::size_t>(got));
    digest.add(std::as_bytes(std::span(bytes)));
    if (auto sent = mover.write(bytes); !sent) return sent;
    range.offset += bytes.size();
    range.length -= bytes.size();
  }
  return {};
}

Result<StateHead> read_head(Mover& mover, Digest& digest) {
  std::string bytes;
  while (const std::size_t missing = missing_of_head(bytes)) {
    const std::size_t have = bytes.size();
    bytes.resize(have + std::min(missing, kPiece));
    if (auto read = mover.read(std::span(bytes).subspan(have)); !read) return read.error();
  }
  digest.add(std::as_bytes(std::span(bytes)));
  return decode_head(bytes);
}

Status receive_range(Mover& mover, Digest& digest, std::span<char> into) {
  while (!into.empty()) {  // A piece is still in the processor's cache when it is digested.
    const auto piece = into.first(std::min(into.size(), kPiece));
    if (auto read = mover.read(piece); !read) return read;
    digest.add(std::as_bytes(piece));
    into = into.subspan(piece.size());
  }
  return {};
}

Status receive_into(StateSink& sink, Mover& mover, const StateHead& head, Digest& digest) {
  // Refused, because the bytes of a former try could be taken for all of the state.
  if (head.ranges.empty()) return Error{Blame::kPeer, "nothing comes of the state"};
  for (std::size_t i = 0; i < head.ranges.size(); ++i) {
    const auto place = sink.place(head, i);
    if (!place) return place.error();
    HF_ASSERT(place->size() == head.ranges[i].length);
    const std::span into(reinterpret_cast<char*>(place->data()), place->size());
    if (auto came = receive_range(mover, digest, into); !came) return came;
  }
  std::string theirs(8, '\0');
  if (auto read = mover.read(theirs); !read) return read;
  if (theirs == eight_bytes_of(digest)) return sink.came(head);
  return Error{Blame::kPeer,
               "what has come of the state is not what was sent: its digest is wrong"};
}

}  // namespace

Status send_state(io::PeerStream& to, const Result<StateFile>& state, const Patience& patience) {
  StateHead head;
  if (state) {
    head = {.refusal = "", .size = state->size, .ranges = state->ranges};
    head.refusal = problem_of(head);
  } else {
    head.refusal = state.error().what.empty() ? "there is none" : state.error().what;
  }
  if (!head.refusal.empty()) {
    head.size = 0;
    head.ranges.clear();
  }
  Mover mover(to, patience);
  Digest digest;
  const auto words = encode(head);
  digest.add(std::as_bytes(std::span(words)));
  if (auto sent = mover.write(words); !sent || !head.refusal.empty()) return sent;
  std::string piece(kPiece, '\0');
  for (const auto& range : head.ranges) {
    if (auto sent = send_range(mover, digest, *state, range, piece); !sent) return sent;
  }
  return mover.write(eight_bytes_of(digest));
}

Status receive_state(io::PeerStream& from, const PeerHello& hello, StateSink& sink,
                     const Patience& patience) {
  Mover mover(from, patience);
  Digest digest;
  if (auto asked = mover.write(encode(hello)); !asked) return asked;
  const auto head = read_head(mover, digest);
  if (!head) return head.error();
  if (!head->refusal.empty()) {
    return Error{Blame::kWorld, cat(from.peer(), " has no such state: ", head->refusal)};
  }
  return receive_into(sink, mover, *head, digest);
}

}  // namespace holdfast::runtime
