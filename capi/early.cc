#include "capi/early.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace holdfast::capi {
namespace {

std::string mark_of(const runtime::Identity& identity) {
  return cat(identity.directory, "/early-over-", identity.run_id);
}

Error failed(const std::string& what) {
  return {Blame::kWorld, cat(what, ": ", std::strerror(errno))};
}

}  // namespace

Status end_early(const runtime::Identity& identity) {
  const std::string mark = mark_of(identity);
  const int file = ::open(mark.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) return failed(cat("cannot make ", mark));
  ::close(file);
  return {};
}

Result<std::unique_ptr<Early>> Early::begin(const runtime::Identity& identity,
                                            Duration join_timeout) {
  std::unique_ptr<Early> early(new Early);
  early->mark_ = mark_of(identity);
  using collective::CurrentGeneration;
  early->current_ = std::make_shared<CurrentGeneration>(CurrentGeneration::Options{
      identity.directory, identity.run_id, join_timeout, [](Generation) { return false; }});
  (void)early->current_->begin(kOnly);
  early->changes_ = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  early->stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (early->changes_ < 0 || early->stop_ < 0 ||
      ::inotify_add_watch(early->changes_, identity.directory.c_str(), IN_CREATE) < 0) {
    return failed(cat("cannot watch ", identity.directory));
  }
  early->thread_ = std::thread([raw = early.get()] { raw->watch(); });
  return early;
}

Early::~Early() {
  if (thread_.joinable()) {
    ::eventfd_write(stop_, 1);
    thread_.join();
  }
  for (const int file : {changes_, stop_}) {
    if (file >= 0) ::close(file);
  }
}

void Early::watch() {
  for (;;) {
    if (::access(mark_.c_str(), F_OK) == 0) return end();
    std::array<pollfd, 2> files{{{changes_, POLLIN, 0}, {stop_, POLLIN, 0}}};
    if (::poll(files.data(), files.size(), -1) < 0 && errno != EINTR) return;
    if (files[1].revents != 0) return;
    std::array<char, 4096> names;  // What they say is looked up instead.
    while (::read(changes_, names.data(), names.size()) > 0) {
    }
  }
}

}  // namespace holdfast::capi
