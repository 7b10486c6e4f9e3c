#include "io/child_watch.h"

#include <fcntl.h>

#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "io/loop_impl.h"

namespace holdfast::io {
namespace {

struct Watch : std::enable_shared_from_this<Watch> {
  Watch(Loop& loop, int fd) : descriptor(loop.impl().context, fd) {}
  void wait() {
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const std::error_code& error) {
                            if (error) return;
                            const auto exit = os::ended(self->descriptor.native_handle());
                            if (!exit) return self->wait();
                            self->on_exit(*exit);
                          });
  }
  asio::posix::stream_descriptor descriptor;
  std::function<void(os::Exit)> on_exit;
};

}  // namespace

void watch(Loop& loop, int pidfd, std::function<void(os::Exit)> on_exit) {
  loop.impl().check_thread();
  const int copy = ::fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw std::system_error(errno, std::system_category());
  const auto watch = std::make_shared<Watch>(loop, copy);
  watch->on_exit = std::move(on_exit);
  watch->wait();
}

}  // namespace holdfast::io
