// An etcd of one or more members on this host, for tests: on free ports, in a folder that goes with
// it.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "io/etcd.h"
#include "io/loop.h"
#include "os/testing.h"

namespace holdfast::io {

inline bool has_etcd() {
  return ::access("/usr/bin/etcd", X_OK) == 0;
}

class EtcdServers {
 public:
  explicit EtcdServers(int members = 1, std::vector<std::string> more = {},
                       std::string scheme = "http")
      : scheme_(std::move(scheme)), more_(std::move(more)) {
    for (int i = 0; i < members; ++i) {
      clients_.push_back(cat(scheme_, "://127.0.0.1:", free_port()));
      peers_.push_back(cat("http://127.0.0.1:", free_port()));
    }
    for (int i = 0; i < members; ++i) start(i);
  }
  ~EtcdServers() {
    for (std::size_t i = 0; i < pids_.size(); ++i) kill(static_cast<int>(i));
  }
  EtcdServers(const EtcdServers&) = delete;
  EtcdServers& operator=(const EtcdServers&) = delete;

  [[nodiscard]] EtcdOptions options() const {
    EtcdOptions made;
    for (const auto& each : clients_) made.members += cat(made.members.empty() ? "" : ",", each);
    return made;
  }
  void kill(int member, int signal = SIGKILL) {
    pid_t& pid = pids_.at(static_cast<std::size_t>(member));
    if (pid == 0) return;
    ::kill(pid, signal);
    // Waits until the member stands still.
    if (signal == SIGSTOP) ::waitpid(pid, nullptr, WUNTRACED);
    if (signal == SIGKILL) ::waitpid(std::exchange(pid, 0), nullptr, 0);
  }
  // Waits until etcd answers.
  [[nodiscard]] bool wait(EtcdOptions options) const {
    auto etcd = Etcd::open(options);
    return etcd && etcd->transact({{}, {{EtcdOperation::Kind::kRange, "x"}}},
                                  Loop::now() + std::chrono::seconds(30));
  }
  [[nodiscard]] bool wait() const { return wait(options()); }

 private:
  static std::uint16_t free_port() {
    const os::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    return ntohs(at.sin_port);
  }

  void start(int member) {
    const auto i = static_cast<std::size_t>(member);
    std::string cluster;
    for (std::size_t k = 0; k < peers_.size(); ++k) {
      cluster += cat(k == 0 ? "" : ",", "m", k, "=", peers_[k]);
    }
    std::vector<std::string> words = {"etcd",
                                      "--name",
                                      cat("m", i),
                                      "--data-dir",
                                      folder_ / cat("m", i),
                                      "--listen-client-urls",
                                      clients_[i],
                                      "--advertise-client-urls",
                                      clients_[i],
                                      "--listen-peer-urls",
                                      peers_[i],
                                      "--initial-advertise-peer-urls",
                                      peers_[i],
                                      "--initial-cluster",
                                      cluster,
                                      "--log-level",
                                      "error",
                                      "--logger",
                                      "zap",
                                      "--log-outputs",
                                      folder_ / "log"};
    words.insert(words.end(), more_.begin(), more_.end());
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    EXPECT_EQ(::posix_spawn(&pid, "/usr/bin/etcd", nullptr, nullptr, argv.data(), environ), 0);
    pids_.push_back(pid);
  }

  os::TemporaryFolder folder_{"/dev/shm"};
  std::string scheme_;
  std::vector<std::string> more_;
  std::vector<std::string> clients_;
  std::vector<std::string> peers_;
  std::vector<pid_t> pids_;
};

}  // namespace holdfast::io
