#include "os/host.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/text.h"
#include "os/errors.h"
#include "os/fd.h"
#include "os/files.h"
#include "os/process.h"

namespace holdfast::os {
namespace {

std::string memory_folder() {
  return ::access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

}  // namespace

std::string runtime_path(const std::string& job) {
  return cat(memory_folder(), "/holdfast-", ::geteuid(), '/', job);
}

Result<std::string> runtime_directory(const std::string& job) {
  if (!is_plain_name(job)) {
    return Error{Blame::kUser, cat("'", job,
                                   "' can not be the name of a job; use letters, digits, '.', '_' "
                                   "and '-', at most 100, and no '.' first")};
  }
  constexpr int kTries = 100;
  const std::string path = folder_of(runtime_path(job));
  for (int tries = 1;; ++tries) {
    const auto mine = Folder::make(path);
    const auto folder = mine ? mine->make_sub(job) : mine.error();
    if (folder) return folder->path();
    // The user's last other job may end now and remove the folder of all jobs.
    if (tries == kTries) return folder.error();
  }
}

Result<Folder> open_runtime_directory(const std::string& path) {
  const auto mine = Folder::open(folder_of(path));
  if (!mine) return mine.error();
  return *mine ? mine->sub(path.substr(mine->path().size() + 1)) : Folder();
}

std::string shared_memory_name() {
  struct stat folder {};
  ::stat(memory_folder().c_str(), &folder);
  return cat(boot_name(), '-', folder.st_dev, '-', pid_namespace().value_or(0));
}

std::string boot_name() {
  const auto boot = read_file("/proc/sys/kernel/random/boot_id");
  return boot ? boot->substr(0, boot->find('\n')) : host_name();
}

bool is_address_elsewhere(const std::string& host) {
  sockaddr_in v4{.sin_family = AF_INET};
  sockaddr_in6 v6{.sin6_family = AF_INET6};
  const bool is_v4 = ::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && ::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return false;
  const Fd socket(::socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto* address =
      is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  return socket && ::bind(socket.get(), address, is_v4 ? sizeof v4 : sizeof v6) != 0 &&
         errno == EADDRNOTAVAIL;
}

std::string local_address(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  std::array<char, NI_MAXHOST> text{};
  if (::getsockname(socket, any, &size) != 0) return {};
  const int failed = ::getnameinfo(any, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? text.data() : "";
}

std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  std::string address;
  for (const auto* each = found; each != nullptr && address.empty(); each = each->ai_next) {
    const Fd socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket && ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0) {
      address = local_address(socket.get());
    }
  }
  ::freeaddrinfo(found);
  return address;
}

bool is_loopback(const std::string& address) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (::inet_pton(AF_INET6, address.c_str(), &v6) != 1) return false;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

}  // namespace holdfast::os
