// DataLinks, in the clear and under TLS: late peers are waited for, wrong ones are refused, and
// every wait ends.
#include "runtime/worker/data_links.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/text.h"
#include "os/files.h"
#include "os/testing.h"
#include "tls/testing/papers.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
using collective::Link;
using collective::Wanted;
using Clock = std::chrono::steady_clock;
using Made = Result<std::vector<std::unique_ptr<Link>>>;

constexpr std::uint64_t kRun = 77;
constexpr auto kLong = 60s;

// Moves `bytes` bytes, or as many as move until the link is over. `move(done)` moves those after
// the first `done`.
template <class Move>
std::size_t move_all(Link& link, std::size_t bytes, const Move& move) {
  std::size_t done = 0;
  while (done < bytes) {
    const auto [state, count] = move(done);
    done += count;
    if (state == Link::State::kMoved) continue;
    const bool reads = state == Link::State::kWantsToRead;
    pollfd one{.fd = link.descriptor(),
               .events = static_cast<short>(reads ? POLLIN : POLLOUT),
               .revents = 0};
    if (state == Link::State::kOver || ::poll(&one, 1, 60'000) != 1) break;
  }
  return done;
}
std::size_t write_all(Link& link, std::span<const std::byte> bytes) {
  return move_all(link, bytes.size(),
                  [&](std::size_t at) { return link.write(bytes.subspan(at)); });
}
std::size_t read_all(Link& link, std::span<std::byte> into) {
  return move_all(link, into.size(), [&](std::size_t at) { return link.read(into.subspan(at)); });
}

void say(Link& link, char letter) {
  const std::array bytes{static_cast<std::byte>(letter)};
  EXPECT_EQ(write_all(link, bytes), 1U);
}
// '\0': the link is over.
char hear(Link& link) {
  std::array<std::byte, 1> byte{};
  (void)read_all(link, byte);
  return static_cast<char>(byte[0]);
}

// What is logged about refused peers.
class Log {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ += text + "\n";
    changed_.notify_all();
  }
  bool comes(const std::string& part) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 30s, [&] { return text_.find(part) != std::string::npos; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
};

class DataLinksTest : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] DataLinks::Options options(const std::string& token = "a token") {
    return {.address = "127.0.0.1",
            .membership = [this, token]() -> Result<io::Membership> {
              return io::Membership{
                  .job = "job", .token = token, .kind = wire::PeerKind::kPeer, .tls = tls_};
            },
            .say = [this](const std::string& text) { log_.add(text); },
            .damaged = [this](Rank peer,
                              const std::string& at) { log_.add(cat("rank ", peer, " at ", at)); },
            .patience = 30s};
  }

  void start(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      workers_.push_back(*DataLinks::start(options()));
      endpoints_.push_back(workers_.back()->endpoint());
    }
    for (std::size_t i = 0; i < count; ++i) introduce(i);
  }
  void introduce(std::size_t i) { workers_[i]->set_peers(kRun, static_cast<Rank>(i), endpoints_); }

  [[nodiscard]] std::future<Made> make(std::size_t rank, std::vector<Wanted> wanted,
                                       Generation generation = 1, const std::string& group = "",
                                       Duration limit = kLong, std::stop_token cancel = {}) {
    auto* const worker = workers_[rank].get();
    return std::async(std::launch::async, [=, wanted = std::move(wanted)] {
      return worker->make(group, generation, wanted, Clock::now() + limit, cancel);
    });
  }
  [[nodiscard]] std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> pair(
      Generation generation = 1) {
    auto one = make(0, {{.peer = 1, .connects = true}}, generation);
    auto other = make(1, {{.peer = 0}}, generation);
    auto left = one.get();
    auto right = other.get();
    EXPECT_TRUE(left && right) << (left ? right : left).error().what;
    return {std::move((*left)[0]), std::move((*right)[0])};
  }

  // Rank 0 makes two links: the peer of one has come, and that of the other does not.
  [[nodiscard]] std::future<Made> make_half(std::stop_token cancel) {
    auto making = make(0, {{.peer = 1, .connects = true}, {.peer = 1, .channel = 1}}, 1, "", 1h,
                       std::move(cancel));
    auto other = make(1, {{.peer = 0}}).get();
    EXPECT_TRUE(other) << other.error().what;
    half_ = std::move((*other)[0]);
    return making;
  }

  std::unique_ptr<Link> half_;
  const tls::Papers papers_;
  std::shared_ptr<tls::Context> tls_ = GetParam() ? *papers_.context(tls::Role::kClient) : nullptr;
  Log log_;
  std::vector<std::unique_ptr<DataLinks>> workers_;
  std::vector<std::string> endpoints_;
};

INSTANTIATE_TEST_SUITE_P(Both, DataLinksTest, testing::Bool(),
                         [](const auto& one) { return one.param ? "UnderTls" : "InTheClear"; });

TEST_P(DataLinksTest, WhoeverSentWhatWasDamagedIsNamed) {
  start(2);
  const auto [left, right] = pair();
  left->damaged();
  EXPECT_TRUE(log_.comes("rank 1 at 127.0.0.1:"));
  std::byte one{};
  EXPECT_EQ(left->read(std::span(&one, 1)).state, Link::State::kOver);
}

TEST_P(DataLinksTest, ACutEndsAllLinksOfAWorkerAndNoneThatComesLater) {
  start(2);
  auto gone = pair(1);
  const auto [left, right] = pair(2);
  gone = {};
  EXPECT_EQ(workers_[1]->cut(), 1U);
  for (Link* const link : {left.get(), right.get()}) EXPECT_EQ(hear(*link), '\0');
  const auto [later, at_peer] = pair(3);
  say(*later, 'a');
  EXPECT_EQ(hear(*at_peer), 'a');
}

TEST_P(DataLinksTest, LinksCarryManyBytesBothWays) {
  start(2);
  auto [left, right] = pair();
  constexpr std::size_t kBytes = 10'000'000;
  const auto filled = [](unsigned seed) {
    std::vector<std::byte> bytes(kBytes);
    for (auto& byte : bytes) byte = static_cast<std::byte>((seed = seed * 1664525 + 1) >> 24U);
    return bytes;
  };
  const auto there = filled(1);
  const auto back = filled(2);
  std::vector<std::byte> heard(kBytes);
  std::thread other([&, &link = *right] {
    std::vector<std::byte> got(kBytes);
    EXPECT_EQ(read_all(link, got), kBytes);
    EXPECT_TRUE(got == there);
    EXPECT_EQ(write_all(link, back), kBytes);
  });
  EXPECT_EQ(write_all(*left, there), kBytes);
  EXPECT_EQ(read_all(*left, heard), kBytes);
  other.join();
  EXPECT_TRUE(heard == back);
}

// Three ranks, three channels between each two, and two groups at a time: no link is another one's.
TEST_P(DataLinksTest, EachLinkIsTheOneThatWasWanted) {
  start(3);
  std::vector<std::future<Made>> making;
  const std::vector<std::string> groups{"", "tensor parallel"};
  const auto wanted_of = [](Rank me) {
    std::vector<Wanted> wanted;
    for (const std::uint32_t channel : {0U, 1U, 2U}) {
      for (const Rank peer : {0, 1, 2}) {
        if (peer != me)
          wanted.push_back(
              {peer, channel,
               (me + peer + static_cast<Rank>(channel)) % 2 == 0 ? me < peer : me > peer});
      }
    }
    return wanted;
  };
  for (const auto& group : groups) {
    for (const std::size_t rank : {0U, 1U, 2U}) {
      making.push_back(make(rank, wanted_of(static_cast<Rank>(rank)), 5, group));
    }
  }
  std::vector<std::vector<std::unique_ptr<Link>>> links;
  for (auto& one : making) {
    auto made = one.get();
    ASSERT_TRUE(made) << made.error().what;
    links.push_back(*std::move(made));
  }
  const auto letter = [](std::size_t group, Rank from, Rank to, std::uint32_t channel) {
    return static_cast<char>('!' + group * 27 + static_cast<std::size_t>(from * 9 + to * 3) +
                             channel);
  };
  for (const bool listen : {false, true}) {
    for (std::size_t i = 0; i < links.size(); ++i) {
      const auto me = static_cast<Rank>(i % 3);
      const auto wanted = wanted_of(me);
      ASSERT_EQ(links[i].size(), wanted.size());
      for (std::size_t k = 0; k < wanted.size(); ++k) {
        const auto [peer, channel, connects] = wanted[k];
        if (listen) {
          EXPECT_EQ(hear(*links[i][k]), letter(i / 3, peer, me, channel));
        } else {
          say(*links[i][k], letter(i / 3, me, peer, channel));
        }
      }
    }
  }
}

TEST_P(DataLinksTest, EachGenerationHasItsOwn) {
  start(2);
  auto [left, right] = pair(1);
  auto [newer_left, newer_right] = pair(2);
  say(*left, 'o');
  say(*newer_left, 'n');
  EXPECT_EQ(hear(*newer_right), 'n');
  EXPECT_EQ(hear(*right), 'o') << "who had it may go on with it";
}

TEST_P(DataLinksTest, APeerThatBeginsLaterIsWaitedFor) {
  start(1);
  // The peer's endpoint is known before it listens there.
  auto late = DataLinks::start(options());
  ASSERT_TRUE(late);
  const auto gone = (*late)->endpoint();
  late->reset();
  endpoints_.push_back(gone);
  introduce(0);
  auto one = make(0, {{.peer = 1, .connects = true}});
  ASSERT_EQ(one.wait_for(100ms), std::future_status::timeout);
  workers_.push_back(*DataLinks::start(options()));
  endpoints_[1] = workers_[1]->endpoint();
  introduce(0);
  // The link comes before the peer knows its own rank.
  const auto left = one.get();
  ASSERT_TRUE(left) << left.error().what;
  say(*(*left)[0], 'x');
  introduce(1);
  const auto right = make(1, {{.peer = 0}}).get();
  ASSERT_TRUE(right) << right.error().what;
  EXPECT_EQ(hear(*(*right)[0]), 'x');
}

TEST_P(DataLinksTest, NamesWhoDidNotCome) {
  start(3);
  const auto gone = endpoints_[2];
  workers_[2].reset();
  const auto made = make(0, {{.peer = 1}, {.peer = 2, .connects = true}}, 1, "", 1s).get();
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().blame, Blame::kWorld);
  const auto& what = made.error().what;
  EXPECT_NE(what.find(cat("rank 1 (at ", endpoints_[1], ") did not come within 1")),
            std::string::npos)
      << what;
  EXPECT_NE(what.find(cat("rank 2 (at ", gone, ") can not be reached: ")), std::string::npos)
      << what;
}

TEST_P(DataLinksTest, ACancelEndsTheWait) {
  start(2);
  std::stop_source stop;
  auto making = make_half(stop.get_token());
  stop.request_stop();
  const auto made = making.get();
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().what.find("given up"), std::string::npos) << made.error().what;
  EXPECT_EQ(hear(*half_), '\0') << "its peer need not wait";
}

TEST_P(DataLinksTest, ItsEndEndsTheWait) {
  start(2);
  auto making = make_half({});
  workers_[0].reset();
  EXPECT_FALSE(making.get());
}

TEST_P(DataLinksTest, ACutWakesBothEnds) {
  start(2);
  auto [left, right] = pair();
  std::thread reader([&link = *left] { EXPECT_EQ(hear(link), '\0'); });
  std::thread other([&link = *right] { EXPECT_EQ(hear(link), '\0'); });
  left->cut();
  reader.join();
  other.join();
  const std::array bytes{std::byte{1}};
  EXPECT_EQ(left->write(bytes).state, Link::State::kOver);
}

TEST_P(DataLinksTest, LinksOutlastTheirMaker) {
  start(2);
  auto [left, right] = pair();
  workers_.clear();
  say(*left, 'x');
  EXPECT_EQ(hear(*right), 'x');
}

TEST_P(DataLinksTest, AnotherTokenIsRefused) {
  start(1);
  // start() and set_peers() call `membership` once each; these are no tries.
  std::atomic<int> tries = -2;
  std::promise<void> tried;
  auto wrong = options("another token");
  wrong.membership = [&, of = wrong.membership] {
    if (++tries == 2) tried.set_value();  // The second try: so the first one has failed.
    return of();
  };
  auto worker = *DataLinks::start(std::move(wrong));
  worker->set_peers(kRun, 1, {endpoints_[0], ""});
  std::stop_source stop;
  auto making = std::async(std::launch::async, [&] {
    return worker->make("", 1, std::array{Wanted{.peer = 0, .connects = true}},
                        Clock::now() + kLong, stop.get_token());
  });
  tried.get_future().wait();
  stop.request_stop();
  const auto made = making.get();
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().what.find("did not accept this process"), std::string::npos)
      << made.error().what;
  EXPECT_TRUE(log_.comes("another token"));
}

// To the rank that has connected, the link seems to be there. It is over when it is used.
TEST_P(DataLinksTest, AnotherRunIsNotHeard) {
  start(2);
  workers_[1]->set_peers(kRun + 1, 1, endpoints_);
  const auto made = make(1, {{.peer = 0, .connects = true}}).get();
  ASSERT_TRUE(made);
  EXPECT_TRUE(log_.comes("of another run"));
  EXPECT_EQ(hear(*(*made)[0]), '\0');
}

TEST_P(DataLinksTest, WhoLooksForAnotherRankIsNotHeard) {
  start(2);
  workers_[1]->set_peers(kRun, 1, {"", "", endpoints_[0]});
  const auto made = make(1, {{.peer = 2, .connects = true}}).get();
  ASSERT_TRUE(made);
  EXPECT_TRUE(log_.comes("it looks for rank 2, and this is rank 0"));
  EXPECT_EQ(hear(*(*made)[0]), '\0');
}

TEST_P(DataLinksTest, AnOlderGenerationIsNotHeard) {
  start(2);
  auto [left, right] = pair(7);
  EXPECT_FALSE(make(1, {{.peer = 0, .connects = true}}, 6).get()) << "nor made";
  auto stale = DataLinks::start(options());
  (*stale)->set_peers(kRun, 1, endpoints_);
  const auto made = (*stale)->make("", 6, std::array{Wanted{.peer = 0, .connects = true}},
                                   Clock::now() + kLong, {});
  ASSERT_TRUE(made);
  EXPECT_TRUE(log_.comes("it is of generation 6, and 7 has begun here"));
  EXPECT_EQ(hear(*(*made)[0]), '\0');
  EXPECT_TRUE(make(0, {{.peer = 1}}, 1, "another group", 1ms).get().error().what.find("over") ==
              std::string::npos)
      << "each group has generations of its own";
}

// A peer that came, and gave up before a call asked for it, is not taken for one that is there.
TEST_P(DataLinksTest, WhoHasGivenUpMeanwhileIsNotTaken) {
  start(2);
  {
    const auto given_up = make(1, {{.peer = 0, .connects = true}}, 4).get();
    ASSERT_TRUE(given_up);
    say(*(*given_up)[0], 'x');
  }
  auto again = make(1, {{.peer = 0, .connects = true}}, 4);
  const auto there = again.get();
  ASSERT_TRUE(there);
  say(*(*there)[0], 'y');
  const auto here = make(0, {{.peer = 1}}, 4).get();
  ASSERT_TRUE(here);
  EXPECT_EQ(hear(*(*here)[0]), 'y');
}

// Few descriptors are left for streams that no call has asked for: the oldest stream is closed.
TEST_P(DataLinksTest, WhatNobodyAsksForHasABound) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit small{256, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  start(2);
  std::vector<std::unique_ptr<Link>> there;
  for (int i = 0; i <= 64; ++i) {
    auto made = make(1, {{.peer = 0, .connects = true}}, 1, cat("group ", i)).get();
    ASSERT_TRUE(made) << made.error().what;
    there.push_back(std::move((*made)[0]));
  }
  EXPECT_EQ(hear(*there[0]), '\0');
  for (const int i : {1, 64}) {
    const auto here = make(0, {{.peer = 1}}, 1, cat("group ", i)).get();
    ASSERT_TRUE(here) << here.error().what;
    say(*there[static_cast<std::size_t>(i)], 'x');
    EXPECT_EQ(hear(*(*here)[0]), 'x');
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_P(DataLinksTest, RefusesWhatCanNotBe) {
  start(2);
  EXPECT_FALSE(make(0, {{.peer = 0}}).get());
  EXPECT_FALSE(make(0, {{.peer = 2}}).get());
  EXPECT_FALSE(make(0, {{.peer = 1}}, 1, std::string(1025, 'x')).get());
  auto options = this->options();
  options.address = "192.0.2.1";
  EXPECT_FALSE(DataLinks::start(std::move(options)));
}

// ---- States -------------------------------------------------------------------------------------

struct Fetched final : StateSink {
  Result<std::span<std::byte>> place(const StateHead& head, std::size_t range) override {
    bytes.resize(head.size);
    const auto& [offset, length] = head.ranges.at(range);
    return std::as_writable_bytes(std::span(bytes)).subspan(offset, length);
  }
  Status came(const StateHead&) override {
    is_whole = true;
    return {};
  }
  std::string bytes;
  bool is_whole = false;
};

class StateOverLinksTest : public DataLinksTest {
 protected:
  void serve(std::function<void()> first = [] {}) {
    ASSERT_TRUE(os::write_file_atomically(folder_ / "state", bytes_));
    workers_[0]->serve_state(
        [this, first = std::move(first)](Rank rank, Version version) -> Result<StateFile> {
          first();
          if (rank != 5 || version != 9) return Error{Blame::kWorld, "only version 9 of rank 5"};
          return StateFile{os::Fd(::open((folder_ / "state").c_str(), O_RDONLY | O_CLOEXEC)),
                           {{0, bytes_.size()}},
                           bytes_.size()};
        });
  }
  Status fetch(Rank rank, Version version, const std::stop_token& cancel = {}) {
    copy_ = {};
    return fetch_into(copy_, rank, version, cancel);
  }
  Status fetch_into(Fetched& copy, Rank rank, Version version, const std::stop_token& cancel = {}) {
    return workers_[1]->fetch_state(endpoints_[0], rank, version, copy, cancel);
  }

  Fetched copy_;

  os::TemporaryFolder folder_;
  const std::string bytes_ = std::string(20'000'000, 'h') + "the end";
};

INSTANTIATE_TEST_SUITE_P(Both, StateOverLinksTest, testing::Bool(),
                         [](const auto& one) { return one.param ? "UnderTls" : "InTheClear"; });

TEST_P(StateOverLinksTest, ComesAsItIs) {
  start(2);
  serve();
  const auto fetched = fetch(5, 9);
  ASSERT_TRUE(fetched) << fetched.error().what;
  EXPECT_TRUE(copy_.is_whole && copy_.bytes == bytes_);
  const auto none = fetch(5, 8);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().what.find("only version 9 of rank 5"), std::string::npos);
  EXPECT_FALSE(copy_.is_whole);
}

// More states than are sent at once: the others wait for their turn.
TEST_P(StateOverLinksTest, ManyAtATimeAllGetIt) {
  start(2);
  std::atomic<std::size_t> now = 0;
  std::atomic<std::size_t> most = 0;
  serve([&] {
    const auto count = ++now;
    for (auto before = most.load(); before < count && !most.compare_exchange_weak(before, count);) {
    }
    --now;
  });
#ifdef HOLDFAST_SANITIZED  // Ten times as slow.
  constexpr int kAskers = 10;
#else
  constexpr int kAskers = 20;
#endif
  std::vector<std::future<bool>> all;
  for (int i = 0; i < kAskers; ++i) {
    all.push_back(std::async(std::launch::async, [&] {
      Fetched copy;
      return fetch_into(copy, 5, 9) && copy.is_whole && copy.bytes == bytes_;
    }));
  }
  for (auto& one : all) EXPECT_TRUE(one.get());
  EXPECT_LE(most, StateServer::kMostAtOnce);
}

TEST_P(StateOverLinksTest, NobodyServesOne) {
  start(2);
  const auto fetched = fetch(5, 9);
  ASSERT_FALSE(fetched);
  EXPECT_NE(fetched.error().what.find("no state is served"), std::string::npos);
}

TEST_P(StateOverLinksTest, ASenderThatEndsMeanwhileLeavesNothing) {
  start(2);
  std::promise<void> asked;
  std::promise<void> go_on;
  serve([&] {
    asked.set_value();
    go_on.get_future().wait();
  });
  auto fetched = std::async(std::launch::async, [&] { return fetch(5, 9); });
  asked.get_future().wait();
  std::thread end([&] { workers_[0].reset(); });
  go_on.set_value();
  end.join();
  // The state was sent whole before the end, or it has not come.
  const auto status = fetched.get();
  EXPECT_EQ(status.has_value(), copy_.is_whole);
}

TEST_P(StateOverLinksTest, ACancelEndsIt) {
  start(2);
  std::promise<void> asked;
  std::promise<void> go_on;
  serve([&] {
    asked.set_value();
    go_on.get_future().wait();
  });
  std::stop_source stop;
  auto fetched = std::async(std::launch::async, [&] { return fetch(5, 9, stop.get_token()); });
  asked.get_future().wait();
  stop.request_stop();
  EXPECT_FALSE(fetched.get());
  EXPECT_FALSE(copy_.is_whole);
  go_on.set_value();
  workers_.clear();  // Ends the thread that has waited, too.
}

TEST_P(StateOverLinksTest, AnotherRunGetsNone) {
  start(2);
  serve();
  workers_[1]->set_peers(kRun + 1, 1, endpoints_);
  EXPECT_FALSE(fetch(5, 9));
  EXPECT_TRUE(log_.comes("of another run"));
}

TEST_P(StateOverLinksTest, WhoIsNotThereIsNamed) {
  start(2);
  workers_[0].reset();
  const auto fetched = fetch(5, 9);
  ASSERT_FALSE(fetched);
  EXPECT_NE(fetched.error().what.find(endpoints_[0]), std::string::npos) << fetched.error().what;
}

}  // namespace
}  // namespace holdfast::runtime
