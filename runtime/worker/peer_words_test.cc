// The first words between workers, byte by byte as docs/formats/peers.md has them.
#include "runtime/worker/peer_words.h"

#include <gtest/gtest.h>

#include <string>

namespace holdfast::runtime {
namespace {

const PeerHello kHello{.what = PeerHello::What::kLink,
                       .run_id = 0x0102030405060708,
                       .number = 9,
                       .from = 3,
                       .to = 1,
                       .channel = 7,
                       .group = "tp"};

TEST(PeerWords, AHelloHasTheBytesOfItsTable) {
  using namespace std::string_literals;
  EXPECT_EQ(encode(kHello),
            "HFP1\x01\0\x02\0\x08\x07\x06\x05\x04\x03\x02\x01"
            "\x09\0\0\0\0\0\0\0\x03\0\0\0\x01\0\0\0\x07\0\0\0tp"s);
}

TEST(PeerWords, AHelloComesBackFromWhateverPieces) {
  for (const auto& hello :
       {kHello, PeerHello{.what = PeerHello::What::kState, .from = 0, .to = 5, .group = ""}}) {
    const auto bytes = encode(hello);
    std::size_t read = 0;
    while (const auto missing = missing_of_hello(bytes.substr(0, read))) {
      EXPECT_FALSE(decode_hello(bytes.substr(0, read)));
      ASSERT_LE(read + missing, bytes.size()) << "what follows is not the hello's";
      ++read;
    }
    EXPECT_EQ(read, bytes.size());
    const auto decoded = decode_hello(bytes);
    ASSERT_TRUE(decoded) << decoded.error().what;
    EXPECT_EQ(*decoded, hello);
  }
}

// Each case changes a good hello in one place.
TEST(PeerWords, NoOtherHelloIsTaken) {
  const auto refused = [](std::size_t at, char byte) {
    auto bytes = encode(kHello);
    bytes[at] = byte;
    return !decode_hello(bytes);
  };
  EXPECT_TRUE(refused(3, '2')) << "magic";
  EXPECT_TRUE(refused(4, 0) && refused(4, 3)) << "what";
  EXPECT_TRUE(refused(4, 2)) << "a state has no group";
  EXPECT_TRUE(refused(5, 1)) << "reserved";
  EXPECT_TRUE(refused(6, 3) && refused(6, 1)) << "another length of the name";
  EXPECT_TRUE(refused(27, '\x80') && refused(31, '\x80')) << "a rank below 0";
  EXPECT_FALSE(refused(32, 5)) << "another channel is as good";
  EXPECT_FALSE(decode_hello(encode(kHello) + "x"));
}

TEST(PeerWords, WhatIsNoHelloIsNotWaitedFor) {
  EXPECT_EQ(missing_of_hello("HFX"), 0U);
  auto bytes = encode(kHello).substr(0, 36);
  bytes[7] = 5;  // A name of 1,282 bytes.
  EXPECT_EQ(missing_of_hello(bytes), 0U);
}

const StateHead kHead{.refusal = "", .size = 100, .ranges = {{0, 10}, {10, 5}, {90, 10}}};

TEST(PeerWords, AnAnswerComesBack) {
  for (const auto& head : {kHead, StateHead{.refusal = "no such version", .ranges = {}},
                           StateHead{.refusal = "", .size = 7, .ranges = {}}}) {
    const auto bytes = encode(head);
    EXPECT_EQ(missing_of_head(bytes), 0U);
    EXPECT_NE(missing_of_head(bytes.substr(0, bytes.size() - 1)), 0U);
    const auto decoded = decode_head(bytes);
    ASSERT_TRUE(decoded) << decoded.error().what;
    EXPECT_EQ(*decoded, head);
  }
}

TEST(PeerWords, NoRangeLiesOutsideOrOverAnother) {
  const auto problem = [](std::vector<StateRange> ranges) {
    return problem_of({.refusal = "", .size = 100, .ranges = std::move(ranges)});
  };
  EXPECT_EQ(problem({{0, 100}}), "");
  for (const auto& ranges : {std::vector<StateRange>{{0, 101}},
                             {{100, 1}},
                             {{5, 0}},
                             {{0, 10}, {9, 5}},
                             {{50, 5}, {0, 5}},
                             {{99, ~std::uint64_t{0}}},
                             {{~std::uint64_t{0}, 2}}}) {
    EXPECT_NE(problem(ranges), "") << ranges[0].offset;
  }
  // encode() would refuse this head, so its bytes are changed: the second range begins within the
  // first.
  auto bytes = encode(kHead);
  bytes[24 + 16] = 9;
  EXPECT_FALSE(decode_head(bytes));
}

TEST(PeerWords, AnAnswerThatAnnouncesTooMuchIsNotWaitedFor) {
  auto bytes = encode(kHead).substr(0, 24);
  bytes[11] = 1;  // 16,777,219 ranges.
  EXPECT_EQ(missing_of_head(bytes), 0U);
  EXPECT_FALSE(decode_head(bytes));
}

}  // namespace
}  // namespace holdfast::runtime
