#include "apps/web/bounded_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace holdfast::apps::web {

BoundedStream::BoundedStream(int socket) : socket_(socket) {}

bool BoundedStream::wait(short events, Clock::time_point until) const {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd one{.fd = socket_, .events = events, .revents = 0};
    const int ready = ::poll(&one, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool BoundedStream::is_readable() const {
  return at_ < filled_ || wait(POLLIN, began_ + kForRequest);
}

bool BoundedStream::is_writable() const {
  return wait(POLLOUT, began_ + kForAnswer);
}

ssize_t BoundedStream::fill() {
  const std::size_t most = std::min(sizeof buffer_, kMostBytes - taken_);
  if (most == 0) return -1;
  while (wait(POLLIN, began_ + kForRequest)) {
    const ssize_t got = ::recv(socket_, buffer_, most, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return got;
    taken_ += static_cast<std::size_t>(got);
    at_ = 0;
    filled_ = static_cast<std::size_t>(got);
    return got;
  }
  return -1;
}

ssize_t BoundedStream::read(char* bytes, std::size_t size) {
  if (at_ == filled_) {
    if (const ssize_t got = fill(); got <= 0) return got;
  }
  const std::size_t count = std::min(size, filled_ - at_);
  std::memcpy(bytes, buffer_ + at_, count);
  at_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t BoundedStream::write(const char* bytes, std::size_t size) {
  while (is_writable()) {
    const ssize_t sent = ::send(socket_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno != EAGAIN && errno != EINTR) return -1;
  }
  return -1;
}

}  // namespace holdfast::apps::web
