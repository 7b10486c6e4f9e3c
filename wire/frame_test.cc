#include "wire/frame.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/prng.h"
#include "wire/codec.h"
#include "wire/samples_for_test.h"

namespace holdfast::wire {
namespace {

struct Outcome {
  std::vector<Message> messages;
  std::string error;
};

Outcome read_in_pieces(const std::string& stream, std::size_t piece) {
  FrameReader reader;
  Outcome outcome;
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    reader.feed(std::string_view(stream).substr(at, piece));
    while (true) {
      auto next = reader.next();
      if (!next) {
        outcome.error = next.error().what;
        return outcome;
      }
      if (!next->has_value()) break;
      outcome.messages.push_back(std::move(**next));
    }
  }
  return outcome;
}

std::string stream_of_all() {
  std::string stream;
  for (const auto& message : extreme_messages()) stream += frame(message);
  return stream;
}

TEST(Frame, HasTheBytesOfTheTable) {
  const std::string bytes = frame(Repaired{5});
  ASSERT_EQ(bytes.size(), 18U);
  EXPECT_EQ(bytes.substr(0, 12), std::string("HFW1\x01\x08\0\0\x02\0\0\0", 12));
  EXPECT_EQ(bytes.substr(12, 4), std::string("\x57\xaf\xa8\xdd", 4));  // By libxxhash, from Python.
  EXPECT_EQ(bytes.substr(16), "\x08\x05");
}

TEST(Frame, GivesTheSameMessagesHoweverTheBytesComeIn) {
  const std::string stream = stream_of_all();
  for (const std::size_t piece : {stream.size(), std::size_t{1}, std::size_t{7}, std::size_t{17}}) {
    const auto outcome = read_in_pieces(stream, piece);
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.messages, extreme_messages()) << "in pieces of " << piece;
  }
}

TEST(Frame, FailsAlikeHoweverTheBytesComeIn) {
  std::string stream = stream_of_all();
  const std::size_t middle = stream.size() / 3;  // A byte within a body, not within a length.
  stream[middle] = static_cast<char>(stream[middle] ^ 1);
  const auto whole = read_in_pieces(stream, stream.size());
  const auto bytewise = read_in_pieces(stream, 1);
  EXPECT_NE(whole.error, "");
  EXPECT_EQ(whole.error, bytewise.error);
  EXPECT_EQ(whole.messages, bytewise.messages);
}

TEST(Frame, FindsEverySingleFlippedBit) {
  const std::string good = frame(Register{"job", "a", 7, 1, "host", 42, kProtocol});
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_TRUE(read_in_pieces(bad, bad.size()).messages.empty()) << "bit " << bit;
  }
}

TEST(Frame, TellsAStrangerByItsHeaderAlone) {
  FrameReader reader;
  reader.feed("GET / HTTP/1.1\r\n");
  const auto next = reader.next();
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().blame, Blame::kPeer);
  reader.feed(frame(Heartbeat{}));
  EXPECT_FALSE(reader.next()) << "an error is final";
  EXPECT_EQ(reader.buffered_bytes(), 0U);
}

TEST(Frame, RefusesAnAnnouncedLengthAboveTheLimitBeforeTheBodyComes) {
  std::string header = frame(Heartbeat{});
  header[11] = '\x01';  // 2^24 bytes: the limit itself.
  FrameReader at_limit;
  at_limit.feed(header);
  EXPECT_TRUE(at_limit.next());
  header[8] = '\x01';  // One more.
  FrameReader above;
  above.feed(header);
  EXPECT_FALSE(above.next());
}

TEST(Frame, TakesABodyUpToTheLimit) {
  // A StatusReply's body is its text, a tag and a length of 4 bytes.
  const Message big = StatusReply{std::string(kMaxBodyBytes - 5, 'x')};
  const std::string bytes = frame(big);
  EXPECT_EQ(bytes.size(), kFrameHeaderBytes + kMaxBodyBytes);
  EXPECT_EQ(read_in_pieces(bytes, 65536).messages, std::vector<Message>{big});
}

TEST(FrameDeathTest, DoesNotMakeAFrameThatNobodyWouldTake) {
  EXPECT_DEATH((void)frame(StatusReply{std::string(kMaxBodyBytes, 'x')}),
               "StatusReply.*kMaxBodyBytes");
  Places too_many;
  too_many.node_ids.resize(kMaxListLength + 1);
  EXPECT_DEATH((void)frame(too_many), "this Places of .* bounds");
}

TEST(Frame, TellsDamageFromWhatThePeerHasSaidSo) {
  const auto blame = [](const std::string& bytes) {
    FrameReader reader;
    reader.feed(bytes);
    const auto next = reader.next();
    return next ? std::nullopt : std::optional(next.error().blame);
  };
  std::string damaged = frame(Repaired{7});
  damaged.back() ^= 1;
  EXPECT_EQ(blame(damaged), Blame::kWorld);
  EXPECT_EQ(blame(frame(Waiting{{.kind = static_cast<Reason::Kind>(250)}})), Blame::kPeer);
  EXPECT_EQ(blame(std::string(16, 'x')), Blame::kPeer);
}

#if defined(HOLDFAST_SANITIZED) || !defined(NDEBUG)
constexpr int kMutants = 60'000;
#else
constexpr int kMutants = 600'000;
#endif

TEST(Frame, SurvivesHalfAMillionMutants) {
  Prng random(11);
  std::vector<std::string> frames;
  for (const auto& message : extreme_messages()) frames.push_back(frame(message));
  int read = 0;
  int refused = 0;
  for (int i = 0; i < kMutants; ++i) {
    FrameReader reader;
    reader.feed(mutate(frames[random.below(frames.size())], random));
    const auto next = reader.next();
    if (!next) {
      ++refused;
    } else if (next->has_value()) {
      ++read;
    }
  }
  EXPECT_GT(refused, kMutants / 2);
  EXPECT_GT(read, 0);  // A byte after the frame changes nothing.
}

// Mutates bodies and decodes them directly: the checksum of a frame would refuse nearly all.
TEST(Codec, SurvivesHalfAMillionMutants) {
  Prng random(12);
  const auto messages = extreme_messages();
  int read = 0;
  int refused = 0;
  for (int i = 0; i < kMutants; ++i) {
    const Message& message = messages[random.below(messages.size())];
    const auto result = decode(kind_of(message), mutate(encode(message), random));
    (result ? read : refused) += 1;
    if (result && kind_of(*result) != kind_of(message)) ADD_FAILURE() << "a message became another";
  }
  EXPECT_GT(refused, kMutants / 10);
  EXPECT_GT(read, kMutants / 10);
}

}  // namespace
}  // namespace holdfast::wire
