#include "runtime/worker/state_transfer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
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

// Of all bytes that have passed.
class Digest {
 public:
  Digest() : state_(XXH3_createState()) {
    HF_ASSERT(state_ != nullptr);
    XXH3_64bits_reset(state_.get());
  }
  void add(std::string_view bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  // In 8 bytes, the lowest first.
  [[nodiscard]] std::string bytes() const {
    std::uint64_t number = XXH3_64bits_digest(state_.get());
    std::string out;
    for (int i = 0; i < 8; ++i, number >>= 8) out += static_cast<char>(number & 0xffU);
    return out;
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

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
    digest.add(bytes);
    if (auto sent = mover.write(bytes); !sent) return sent;
    range.offset += bytes.size();
    range.length -= bytes.size();
  }
  return {};
}

Status write_at(const os::Fd& file, const std::string& path, std::uint64_t offset,
                std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return os::system_error(cat(path, " can not be written"), put < 0 ? errno : EIO);
    bytes.remove_prefix(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
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
  digest.add(bytes);
  return decode_head(bytes);
}

Status receive_into(const os::Fd& file, const std::string& path, Mover& mover,
                    const StateHead& head, Digest& digest) {
  if (::ftruncate(file.get(), static_cast<off_t>(head.size)) != 0) {
    return os::system_error(cat(path, " can not be made ", head.size, " bytes long"), errno);
  }
  std::string piece(kPiece, '\0');
  for (auto [offset, length] : head.ranges) {
    while (length > 0) {
      const auto part = std::span(piece).first(std::min<std::uint64_t>(length, kPiece));
      if (auto read = mover.read(part); !read) return read;
      const std::string_view bytes(part.data(), part.size());
      digest.add(bytes);
      if (auto written = write_at(file, path, offset, bytes); !written) return written;
      offset += bytes.size();
      length -= bytes.size();
    }
  }
  std::string theirs(8, '\0');
  if (auto read = mover.read(theirs); !read) return read;
  if (theirs == digest.bytes()) return {};
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
  digest.add(words);
  if (auto sent = mover.write(words); !sent || !head.refusal.empty()) return sent;
  std::string piece(kPiece, '\0');
  for (const auto& range : head.ranges) {
    if (auto sent = send_range(mover, digest, *state, range, piece); !sent) return sent;
  }
  return mover.write(digest.bytes());
}

Status receive_state(io::PeerStream& from, const PeerHello& hello, const std::string& path,
                     const Patience& patience) {
  Mover mover(from, patience);
  Digest digest;
  if (auto asked = mover.write(encode(hello)); !asked) return asked;
  const auto head = read_head(mover, digest);
  if (!head) return head.error();
  if (!head->refusal.empty()) {
    return Error{Blame::kWorld, cat(from.peer(), " has no such state: ", head->refusal)};
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return os::system_error(cat(path, " can not be replaced"), errno);
  }
  const os::Fd file(::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return os::system_error(cat(path, " can not be made"), errno);
  auto received = receive_into(file, path, mover, *head, digest);
  if (!received) (void)::unlink(path.c_str());
  return received;
}

}  // namespace holdfast::runtime
