// A state's file between two ends of a stream: what arrives is what was sent, or nothing does.
#include "runtime/worker/state_transfer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "os/files.h"
#include "os/fork_guard.h"
#include "os/testing.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSize = 20'000'000;
const std::vector<StateRange> kRanges{{4096, 9'000'000}, {9'004'096, 1}, {12'345'678, 7'654'322}};

io::PeerStream stream_over(int fd) {
  const auto held = os::hold_forks();
  os::guard_from_children(fd);
  return {fd, io::Stream(fd), "a peer"};
}

std::string some_bytes() {
  std::string bytes(kSize, '\0');
  std::uint64_t x = 1;
  for (auto& byte : bytes) {
    x = x * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<char>(x >> 56);
  }
  return bytes;
}

// A file of zeros, and whether it was told that all of it has come.
class MemorySink final : public StateSink {
 public:
  Result<std::span<std::byte>> place(const StateHead& head, std::size_t range) override {
    EXPECT_EQ(range, asked_++);
    if (range == refuses) return Error{Blame::kPeer, "this is not what is wanted"};
    if (range == 0) bytes.assign(head.size, '\0');
    const auto& [offset, length] = head.ranges.at(range);
    return std::as_writable_bytes(std::span(bytes)).subspan(offset, length);
  }
  Status came(const StateHead& head) override {
    EXPECT_EQ(asked_, head.ranges.size());
    is_whole = true;
    return likes_it ? Status() : Error{Blame::kPeer, "this is not what is wanted"};
  }
  std::string bytes;
  bool is_whole = false;
  bool likes_it = true;
  std::size_t refuses = 1000;

 private:
  std::size_t asked_ = 0;
};

class StateTransferTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    sender_ = stream_over(ends[0]);
    receiver_ = stream_over(ends[1]);
    ASSERT_TRUE(os::write_file_atomically(folder / "state", bytes_));
  }

  [[nodiscard]] Result<StateFile> file() const {
    return StateFile{os::Fd(::open((folder / "state").c_str(), O_RDONLY | O_CLOEXEC)), kRanges,
                     kSize};
  }

  // Hears the request, then does `answer`.
  std::thread sender(std::function<void(io::PeerStream&)> answer) {
    return std::thread([this, answer = std::move(answer)] {
      std::string asked(36, '\0');
      std::size_t have = 0;
      while (have < asked.size()) {
        have += sender_.stream().read(std::span(asked).subspan(have)).bytes;
        std::this_thread::yield();
      }
      hello_ = decode_hello(asked).has_value();
      answer(sender_);
    });
  }

  Status receive(const Patience& patience = {}) {
    return receive_state(receiver_,
                         {.what = PeerHello::What::kState, .from = 0, .to = 3, .group = ""}, copy_,
                         patience);
  }
  void expect_nothing() const { EXPECT_FALSE(copy_.is_whole); }

  os::TemporaryFolder folder;
  const std::string bytes_ = some_bytes();
  io::PeerStream sender_;
  io::PeerStream receiver_;
  MemorySink copy_;
  bool hello_ = false;
};

TEST_F(StateTransferTest, BringsTheRangesToTheirPlaces) {
  auto thread = sender([&](auto& to) { EXPECT_TRUE(send_state(to, file(), {})); });
  const auto received = receive();
  thread.join();
  ASSERT_TRUE(received) << received.error().what;
  EXPECT_TRUE(hello_);
  std::string expected(kSize, '\0');
  for (const auto& [offset, length] : kRanges) {
    expected.replace(offset, length, bytes_.substr(offset, length));
  }
  EXPECT_TRUE(copy_.bytes == expected);
  EXPECT_TRUE(copy_.is_whole);
}

TEST_F(StateTransferTest, TellsWhyThereIsNone) {
  auto thread = sender([](auto& to) {
    EXPECT_TRUE(send_state(to, Error{Blame::kWorld, "version 7 is gone"}, {}));
  });
  const auto received = receive();
  thread.join();
  ASSERT_FALSE(received);
  EXPECT_NE(received.error().what.find("version 7 is gone"), std::string::npos);
  expect_nothing();
}

// A byte changes on the way.
TEST_F(StateTransferTest, AWrongDigestLeavesNothing) {
  auto thread = sender([&](auto& to) {
    const StateHead head{.refusal = "", .size = 8, .ranges = {{0, 8}}};
    auto sent = encode(head) + "88888888" + std::string(8, '?');
    EXPECT_EQ(to.stream().write(sent).bytes, sent.size());
  });
  const auto received = receive();
  thread.join();
  ASSERT_FALSE(received);
  EXPECT_NE(received.error().what.find("digest"), std::string::npos) << received.error().what;
  expect_nothing();
}

TEST_F(StateTransferTest, ASenderThatIsGoneInTheMidstLeavesNothing) {
  auto thread = sender([&](auto& to) {
    const StateHead head{.refusal = "", .size = kSize, .ranges = kRanges};
    auto sent = encode(head) + bytes_.substr(0, 50'000);
    EXPECT_EQ(to.stream().write(sent).bytes, sent.size());
    to = {};
  });
  const auto received = receive();
  thread.join();
  ASSERT_FALSE(received);
  EXPECT_NE(received.error().what.find("closed the connection"), std::string::npos)
      << received.error().what;
  expect_nothing();
}

TEST_F(StateTransferTest, ASenderThatSaysNoMoreIsNotWaitedForForEver) {
  auto thread = sender([](auto&) {});
  const auto received = receive({.cancel = {}, .limit = 100ms});
  thread.join();
  ASSERT_FALSE(received);
  EXPECT_NE(received.error().what.find("nothing moves"), std::string::npos);
  expect_nothing();
}

TEST_F(StateTransferTest, AReceiverThatTakesNothingIsNotWaitedForForEver) {
  const auto sent = send_state(sender_, file(), {.cancel = {}, .limit = 100ms});
  ASSERT_FALSE(sent);
  EXPECT_NE(sent.error().what.find("nothing moves"), std::string::npos);
}

TEST_F(StateTransferTest, ACancelEndsItAtOnce) {
  std::stop_source stop;
  auto thread = sender([&](auto&) { stop.request_stop(); });
  const auto received = receive({.cancel = stop.get_token(), .limit = 1h});
  thread.join();
  ASSERT_FALSE(received);
  EXPECT_NE(received.error().what.find("cancelled"), std::string::npos) << received.error().what;
  expect_nothing();
}

// The sender notices that its own file is shorter than its ranges.
TEST_F(StateTransferTest, AFileThatIsTooShortIsNotSent) {
  auto thread = sender([&](auto& to) {
    auto state = file();
    state->size *= 2;
    state->ranges.push_back({kSize, 5});
    const auto sent = send_state(to, state, {});
    EXPECT_FALSE(sent);
    to = {};
  });
  EXPECT_FALSE(receive());
  thread.join();
  expect_nothing();
}

TEST_F(StateTransferTest, WhatTheReceiverDoesNotWantEndsIt) {
  for (const std::size_t range : {std::size_t{0}, std::size_t{2}}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    sender_ = stream_over(ends[0]);
    receiver_ = stream_over(ends[1]);
    copy_ = {};
    copy_.refuses = range;
    auto thread =
        sender([&](auto& to) { (void)send_state(to, file(), {.cancel = {}, .limit = 5s}); });
    const auto received = receive();
    receiver_ = {};
    thread.join();
    ASSERT_FALSE(received);
    EXPECT_EQ(received.error().what, "this is not what is wanted");
    expect_nothing();
  }
}

TEST_F(StateTransferTest, WhatIsNotWantedInTheEndHasNotCome) {
  copy_.likes_it = false;
  auto thread = sender([&](auto& to) { EXPECT_TRUE(send_state(to, file(), {})); });
  EXPECT_FALSE(receive());
  thread.join();
}

}  // namespace
}  // namespace holdfast::runtime
