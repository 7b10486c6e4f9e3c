#include <gtest/gtest.h>

#include <array>
#include <span>
#include <utility>

#include "base/digest.h"
#include "base/ids.h"
#include "base/number.h"
#include "base/prng.h"
#include "base/result.h"
#include "base/text.h"

namespace holdfast {
namespace {

TEST(Result, HoldsAValueOrAnError) {
  Result<int> good = 3;
  Result<int> bad = Error{Blame::kUser, "no"};
  EXPECT_TRUE(good.has_value());
  EXPECT_EQ(*good, 3);
  EXPECT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().what, "no");
}

TEST(ResultDeathTest, ReadingAnAbsentValueEndsTheProcess) {
  Result<int> bad = Error{Blame::kUser, "no"};
  EXPECT_DEATH((void)*bad, "assertion failed");
}

TEST(Text, CountsInWordsThatArePronounced) {
  for (const auto& [number, word] : {std::pair{1U, "1st"},
                                     {2U, "2nd"},
                                     {3U, "3rd"},
                                     {4U, "4th"},
                                     {10U, "10th"},
                                     {11U, "11th"},
                                     {12U, "12th"},
                                     {13U, "13th"},
                                     {21U, "21st"},
                                     {102U, "102nd"},
                                     {111U, "111th"}}) {
    EXPECT_EQ(ordinal(number), word);
  }
}

TEST(Text, CountsOneAsOne) {
  EXPECT_EQ(counted(0, "worker"), "0 workers");
  EXPECT_EQ(counted(1, "worker"), "1 worker");
  EXPECT_EQ(counted(4, "worker"), "4 workers");
  EXPECT_EQ(all_of(1, "worker"), "the one worker");
  EXPECT_EQ(all_of(4, "worker"), "all 4 workers");
}

TEST(Text, JoinsWordsAndNumbers) {
  EXPECT_EQ(cat("rank ", 3, ' ', std::string("died")), "rank 3 died");
}

TEST(Text, ShowsThePortOfAnIpv6Address) {
  EXPECT_EQ(host_and_port("::1", 8118), "[::1]:8118");
  EXPECT_EQ(host_and_port("[::1]", 8118), "[::1]:8118");
  EXPECT_EQ(host_and_port("127.0.0.1", 8118), "127.0.0.1:8118");
  EXPECT_EQ(host_and_port("", 1), ":1");
  for (const std::string_view text : {"10.0.0.3:40123", "[fd00::3]:1"}) {
    const auto endpoint = endpoint_in(text);
    ASSERT_TRUE(endpoint) << text;
    EXPECT_EQ(host_and_port(endpoint->host, endpoint->port), text);
  }
  for (const std::string_view text : {"", "a", ":1", "a:", "a:0", "a:65536", "a:1b", "[]:1"}) {
    EXPECT_FALSE(endpoint_in(text)) << text;
  }
}

TEST(Prng, GivesTheSameNumbersForEver) {
  Prng a(7);
  EXPECT_EQ(a.next(), 7191089600892374487U);
  EXPECT_NE(derive(7, 0, 1), derive(7, 1, 0));
  for (int i = 0; i < 1000; ++i) EXPECT_LT(a.below(10), 10U);
}

TEST(Digest, TellsOneBit) {
  std::array<std::byte, 64> bytes{};
  const auto before = digest(bytes);
  bytes[63] = std::byte{1};
  EXPECT_NE(digest(bytes), before);
}

TEST(Digest, IsTheSameOfPieces) {
  std::array<std::byte, 5000> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const std::span<const std::byte> all(bytes);
  Digest pieces;
  EXPECT_EQ(pieces.value(), digest({}));
  for (const auto& [from, count] : {std::pair{0, 1}, {1, 0}, {1, 299}, {300, 4700}}) {
    pieces.add(all.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(count)));
  }
  EXPECT_EQ(pieces.value(), digest(all));
}

TEST(Number, IsReadFromItsHexDigits) {
  EXPECT_EQ(hex(0), "0000000000000000");
  EXPECT_EQ(hex(0xfedcba9876543210U), "fedcba9876543210");
  EXPECT_EQ(number_of_hex(hex(~std::uint64_t{0})), ~std::uint64_t{0});
  EXPECT_EQ(number_of_hex("000000000000000a"), 10U);
  for (const char* other : {"", "a", "000000000000000A", "000000000000000g", "-00000000000000a",
                            "0000000000000000a", "0x0000000000000a", " 00000000000000a"}) {
    EXPECT_FALSE(number_of_hex(other)) << other;
  }
}

}  // namespace
}  // namespace holdfast
