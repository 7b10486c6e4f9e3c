// SpanJob: ranks of a group on several hosts, as threads of one process. Each host has a directory
// of its own, and sockets link them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/text.h"
#include "collective/group.h"
#include "collective/links.h"
#include "collective/test_job.h"
#include "os/fd.h"

namespace holdfast::collective {

using SocketPair = std::array<os::Fd, 2>;

// A connection over the loopback interface.
inline SocketPair tcp_pair() {
  const os::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  auto* address = reinterpret_cast<sockaddr*>(&at);
  HF_ASSERT(::bind(listener.get(), address, size) == 0 && ::listen(listener.get(), 1) == 0);
  HF_ASSERT(::getsockname(listener.get(), address, &size) == 0);
  SocketPair pair;
  pair[0].reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  HF_ASSERT(::connect(pair[0].get(), address, size) == 0);
  pair[1].reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  HF_ASSERT(pair[1].get() >= 0);
  const int yes = 1;
  for (const os::Fd& end : pair) {
    HF_ASSERT(::setsockopt(end.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
  }
  return pair;
}

inline SocketPair local_pair() {
  int ends[2];
  HF_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {os::Fd(ends[0]), os::Fd(ends[1])};
}

class SocketLink final : public Link {
 public:
  // `most`: bytes that move at a time; 0: as many as can. `lies`: a seed by which a byte that is
  // read is now and then falsified; 0: never.
  SocketLink(os::Fd socket, std::size_t most, std::uint64_t lies)
      : socket_(std::move(socket)), most_(most), lies_(lies) {
    const int flags = ::fcntl(socket_.get(), F_GETFL);
    HF_ASSERT(::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) == 0);
  }
  ~SocketLink() override { cut(); }
  Moved read(std::span<std::byte> into) override {
    const ssize_t n = ::recv(socket_.get(), into.data(), some(into.size()), 0);
    if (n > 0 && lies_ != 0) lie(into.first(static_cast<std::size_t>(n)));
    if (n > 0) return {State::kMoved, static_cast<std::size_t>(n)};
    return {n < 0 && errno == EAGAIN ? State::kWantsToRead : State::kOver, 0};
  }
  Moved write(std::span<const std::byte> bytes) override {
    const ssize_t n = ::send(socket_.get(), bytes.data(), some(bytes.size()), MSG_NOSIGNAL);
    if (n > 0) return {State::kMoved, static_cast<std::size_t>(n)};
    return {n < 0 && errno == EAGAIN ? State::kWantsToWrite : State::kOver, 0};
  }
  // Only one thread may change `moves_`.
  [[nodiscard]] bool is_duplex() const override { return most_ == 0; }
  [[nodiscard]] int descriptor() const override { return socket_.get(); }
  void cut() override { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  [[nodiscard]] std::size_t some(std::size_t bytes) {
    return most_ == 0 ? bytes : std::min<std::size_t>(bytes, 1 + derive(5, ++moves_) % most_);
  }
  void lie(std::span<std::byte> bytes) {
    const std::uint64_t bits = derive(lies_, ++reads_);
    if (bits % 32 == 0)
      bytes[(bits >> 8) %
            (bits % 64 == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 100))] ^=
          std::byte(bits >> 56);
  }
  const os::Fd socket_;
  const std::size_t most_;
  const std::uint64_t lies_;
  std::uint64_t reads_ = 0;
  std::uint64_t moves_ = 0;
};

// Where the ranks find each other.
class Meeting {
 public:
  using Key = std::tuple<std::string, Generation, Rank, Rank, std::uint32_t>;

  std::atomic<std::size_t> most = 0;  // For SocketLink.
  std::atomic<bool> over_tcp = false;
  std::uint64_t liars = 0;  // The seed of SocketLink's `lies`; 0: links are true.
  // Called with the ends of a new link.
  std::function<void(const Key&, int, int)> on_link;

  Result<std::vector<std::unique_ptr<Link>>> make(Rank me, const std::string& group,
                                                  Generation generation,
                                                  std::span<const Wanted> wanted,
                                                  Links::Deadline deadline,
                                                  const std::stop_token& cancel) {
    std::vector<std::unique_ptr<Link>> links;
    std::vector<Key> offered;
    std::unique_lock lock(mutex_);
    for (const Wanted& w : wanted) {
      const Key key{group, generation, std::min(me, w.peer), std::max(me, w.peer), w.channel};
      const auto found = offers_.find(key);
      if (found != offers_.end()) {
        EXPECT_NE(found->second.connects, w.connects) << "both connect, or none";
        links.push_back(std::make_unique<SocketLink>(std::move(found->second.end), most, lies()));
        offers_.erase(found);
        continue;
      }
      SocketPair pair = over_tcp ? tcp_pair() : local_pair();
      if (on_link) on_link(key, pair[0].get(), pair[1].get());
      links.push_back(std::make_unique<SocketLink>(std::move(pair[0]), most, lies()));
      offers_[key] = {std::move(pair[1]), w.connects};
      offered.push_back(key);
    }
    changed_.notify_all();
    const bool taken = changed_.wait_until(lock, cancel, deadline, [&] {
      return std::none_of(offered.begin(), offered.end(),
                          [&](const Key& key) { return offers_.contains(key); });
    });
    if (taken) return links;
    for (const Key& key : offered) offers_.erase(key);
    return Error{Blame::kWorld, "no link"};
  }

 private:
  std::uint64_t lies() { return liars == 0 ? 0 : derive(liars, ++made_); }
  struct Offer {
    os::Fd end;
    bool connects = false;
  };
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<Key, Offer> offers_;
  std::uint64_t made_ = 0;
};

class TestLinks final : public Links {
 public:
  TestLinks(Meeting& meeting, Rank me) : meeting_(&meeting), me_(me) {}
  Result<std::vector<std::unique_ptr<Link>>> make(const std::string& group, Generation generation,
                                                  std::span<const Wanted> wanted, Deadline deadline,
                                                  const std::stop_token& cancel) override {
    return meeting_->make(me_, group, generation, wanted, deadline, cancel);
  }

 private:
  Meeting* meeting_;
  Rank me_;
};

class SpanJob {
 public:
  explicit SpanJob(std::vector<int> hosts, std::uint64_t arena_bytes = 0)
      : hosts_(std::move(hosts)), arenas_(static_cast<int>(hosts_.size()), arena_bytes) {
    base_ = arenas_.base();
    for (const int host : hosts_) {
      std::filesystem::create_directory(directory_of(host));
    }
  }

  Group::Options& base() { return base_; }
  Meeting& meeting() { return meeting_; }
  [[nodiscard]] int size() const { return static_cast<int>(hosts_.size()); }
  [[nodiscard]] int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::string directory_of(int host) const {
    return cat(base_.directory, "/host-", host);
  }
  [[nodiscard]] Layout layout(Rank me) {
    return {
        .host_of = hosts_, .domain_of = hosts_, .links = std::make_shared<TestLinks>(meeting_, me)};
  }
  [[nodiscard]] Group::Options options(int rank) {
    Group::Options o = base_;
    o.rank = rank;
    o.directory = directory_of(host_of(rank));
    o.layout = layout(rank);
    return o;
  }
  [[nodiscard]] std::unique_ptr<Group> join(int rank) {
    auto group = Group::join(options(rank));
    if (group) return *std::move(group);
    ADD_FAILURE() << group.error().what;
    return nullptr;
  }
  // Every rank joins and does `body` in a thread of its own, under the next generation.
  void run(const std::function<void(Group&)>& body) {
    run_ranks(
        size(), [this](int rank) { return join(rank); }, body);
    ++base_.generation;
  }
  // The same, but each rank also joins a group on one host, to compare with.
  void run_beside_one_host(const std::function<void(Group& span, Group& host)>& body) {
    run([&](Group& span) {
      Group::Options o = base_;
      o.rank = span.rank();
      o.registered = {};
      auto host = Group::join(o);
      ASSERT_TRUE(host) << host.error().what;
      body(span, **host);
    });
  }

 private:
  std::vector<int> hosts_;
  TestJob arenas_;
  Group::Options base_;
  Meeting meeting_;
};

}  // namespace holdfast::collective
