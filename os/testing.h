// For tests: a folder that goes with its test, sockets of this host, another user, and a file
// system of its own.
#pragma once

#include <grp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "os/fd.h"

namespace holdfast::os {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent = std::filesystem::temp_directory_path()) {
    path_ = parent + "/holdfast-test-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs `body` in a child process of this user; returns its result, 0 to 255. Only root can be
// another user.
template <class Body>
int as_user(uid_t user, const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_other = user == ::geteuid() ||
                          (::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 &&
                           ::setresuid(user, user, user) == 0);
    const auto alone = [&]() noexcept { return body(); };  // No exception goes into the test.
    ::_exit(is_other ? alone() : 255);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 255;
  return WEXITSTATUS(status);
}

// Runs `body` in a child process that alone sees a new tmpfs at `folder`, with these options of
// mount(8). Returns its result, or 128 + the signal that ended it. Nothing: this user may not
// mount.
template <class Body>
std::optional<int> on_a_tmpfs(const std::string& folder, const std::string& options,
                              const Body& body) {
  constexpr int kNoMount = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    const bool alone = ::unshare(CLONE_NEWNS) == 0 &&
                       ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       ::mount("none", folder.c_str(), "tmpfs", 0, options.c_str()) == 0;
    ::_exit(alone ? int{body()} : kNoMount);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) std::abort();
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  if (WEXITSTATUS(status) == kNoMount) return std::nullopt;
  return WEXITSTATUS(status);
}

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A socket that is bound to a port of 127.0.0.1; 0: to one that is free.
inline Fd bound_to(std::uint16_t port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  const auto* of = reinterpret_cast<const sockaddr*>(&address);
  if (::bind(socket.get(), of, sizeof address) != 0) std::abort();
  return socket;
}

// bound_to(), and it listens. It accepts nobody.
inline Fd listening_at(std::uint16_t port, int queue) {
  Fd socket = bound_to(port);
  if (::listen(socket.get(), queue) != 0) std::abort();
  return socket;
}

inline std::uint16_t port_of(const Fd& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::abort();
  }
  return ntohs(address.sin_port);
}

// A socket that is connected to a port of 127.0.0.1. Empty: nobody listens there.
inline Fd connected_to(std::uint16_t port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  const auto* of = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(socket.get(), of, sizeof address) != 0) socket.reset();
  return socket;
}

// A port of 127.0.0.1 that was free just now.
inline std::uint16_t free_port() {
  return port_of(bound_to(0));
}

}  // namespace holdfast::os
