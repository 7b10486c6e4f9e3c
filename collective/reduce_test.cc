// Every type and op is reduced in rank order, and rounded as reduce.h says.
#include "collective/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/prng.h"

namespace holdfast::collective {
namespace {

template <class T>
std::vector<T> reduced(const std::vector<std::vector<T>>& rows, Element element, Op op) {
  std::vector<const std::byte*> bytes;
  for (const auto& row : rows) bytes.push_back(std::as_bytes(std::span(row)).data());
  std::vector<T> out(rows[0].size());
  reduce_rows(std::as_writable_bytes(std::span(out)).data(), bytes, out.size(), {element, op});
  return out;
}

std::uint16_t half(double value) {  // The nearest float16, ties to even, by brute force.
  std::uint16_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint16_t bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = bits >> 10;
    const double fraction = bits & 0x3ff;
    const double x =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    const double away = std::fabs(x - std::fabs(value));
    if (away < least || (away == least && bits % 2 == 0)) {
      least = away;
      best = bits;
    }
  }
  return static_cast<std::uint16_t>(best | (value < 0 ? 0x8000 : 0));
}

TEST(Reduction, KeepsEveryFloat16ThatItIsGivenAlone) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto given = static_cast<std::uint16_t>(bits);
    const bool nan = (given & 0x7c00) == 0x7c00 && (given & 0x3ff) != 0;
    const auto got = reduced<std::uint16_t>({{given}}, Element::kFloat16, Op::kSum)[0];
    if (nan) {
      ASSERT_TRUE((got & 0x7c00) == 0x7c00 && (got & 0x3ff) != 0) << bits;
    } else {
      ASSERT_EQ(got, given);
    }
  }
}

TEST(Reduction, RoundsASumOfFloat16ToTheNearest) {
  for (const double a : {1.0, 0.1, -0.3, 2047.0, 6.1e-5, 3.0e-8, -1.0009765625}) {
    for (const double b : {0.00048828125, 1.0, -0.7, 0.5, 3.0e-8, 2.9e-5}) {
      const std::uint16_t x = half(a);
      const std::uint16_t y = half(b);
      const auto value = [](std::uint16_t bits) {
        const int e = (bits >> 10) & 0x1f;
        const double f = bits & 0x3ff;
        const double m = e == 0 ? std::ldexp(f, -24) : std::ldexp(1024 + f, e - 25);
        return (bits & 0x8000) != 0 ? -m : m;
      };
      const double exact = value(x) + value(y);
      const auto got = reduced<std::uint16_t>({{x}, {y}}, Element::kFloat16, Op::kSum)[0];
      ASSERT_EQ(got, half(exact)) << a << " + " << b;
    }
  }
}

TEST(Reduction, RoundsOnceAndNotAfterEveryRank) {
  // Rounded after every rank, 2048 + 1 + 1 would be 2048 in float16. The right sum is 2050.
  const auto got =
      reduced<std::uint16_t>({{half(2048)}, {half(1)}, {half(1)}}, Element::kFloat16, Op::kSum);
  EXPECT_EQ(got[0], half(2050));
}

TEST(Reduction, GivesInfinityBeyondTheGreatestFloat16) {
  const std::uint16_t greatest = 0x7bff;
  EXPECT_EQ(reduced<std::uint16_t>({{greatest}, {greatest}}, Element::kFloat16, Op::kSum)[0],
            0x7c00);
}

TEST(Reduction, AddsInRankOrder) {
  const std::vector<std::vector<float>> rows{{1e8F}, {-1e8F}, {1.0F}};
  EXPECT_EQ(reduced(rows, Element::kFloat32, Op::kSum)[0], 1.0F);
  const std::vector<std::vector<float>> others{{1.0F}, {1e8F}, {-1e8F}};
  EXPECT_EQ(reduced(others, Element::kFloat32, Op::kSum)[0], 0.0F);
}

TEST(Reduction, WrapsWholeNumbersRound) {
  EXPECT_EQ((reduced<std::int8_t>({{127}, {1}}, Element::kInt8, Op::kSum)[0]), -128);
  EXPECT_EQ((reduced<std::uint8_t>({{200}, {100}}, Element::kUint8, Op::kSum)[0]), 44);
  EXPECT_EQ((reduced<std::int16_t>({{300}, {300}}, Element::kInt16, Op::kProduct)[0]), 24464);
  const std::int64_t low = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ((reduced<std::int64_t>({{low}, {-1}}, Element::kInt64, Op::kProduct)[0]), low);
}

TEST(Reduction, LetsNotANumberWin) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Op op : {Op::kMin, Op::kMax, Op::kSum, Op::kProduct}) {
    EXPECT_TRUE(std::isnan(reduced<float>({{1.0F}, {nan}}, Element::kFloat32, op)[0]));
    EXPECT_TRUE(std::isnan(reduced<float>({{nan}, {1.0F}}, Element::kFloat32, op)[0]));
  }
}

TEST(Reduction, MakesEveryRowTheResultWhereItIsInPlace) {
  for (const auto& [element, op] : {std::pair{Element::kInt16, Op::kMax},
                                    {Element::kInt32, Op::kXor},
                                    {Element::kInt32, Op::kSum},
                                    {Element::kFloat32, Op::kAverage},
                                    {Element::kFloat16, Op::kAverage}}) {
    std::vector<std::vector<std::uint8_t>> rows(3, std::vector<std::uint8_t>(400));
    for (std::size_t i = 0; i < 1200; ++i)
      rows[i / 400][i % 400] = static_cast<std::uint8_t>(i * 7);
    std::vector<std::byte*> bytes;
    for (auto& row : rows) bytes.push_back(std::as_writable_bytes(std::span(row)).data());
    const std::size_t count = 400 / size_of(element);
    std::vector<std::uint8_t> want(400);
    reduce_rows(std::as_writable_bytes(std::span(want)).data(), {bytes.data(), bytes.size()}, count,
                {element, op});
    reduce_in_place(bytes, count, {element, op});
    for (const auto& row : rows) EXPECT_EQ(row, want) << name_of(op) << " of " << name_of(element);
  }
}

// reduce_part() over runs of ranks, each of which adds its rows to the partial of the runs before.
TEST(Reduction, InPartsGivesTheSameBits) {
  constexpr std::size_t kBytes = 1000;
  for (std::uint64_t round = 0; round < 40; ++round) {
    const std::size_t ranks = 2 + derive(1, round) % 7;
    std::vector<std::vector<std::byte>> rows(ranks, std::vector<std::byte>(kBytes));
    std::vector<const std::byte*> at;
    for (std::size_t k = 0; k < ranks; ++k) {
      for (std::size_t i = 0; i < kBytes; ++i) rows[k][i] = std::byte(derive(2, round, k, i) % 127);
      at.push_back(rows[k].data());
    }
    std::byte none{};
    for (int i = 0; i < static_cast<int>(Element::kBytes) * 8; ++i) {
      const Reduction how{static_cast<Element>(i / 8), static_cast<Op>(i % 8)};
      if (!check(Numbers(&none, 0, how.element), how.op)) continue;
      const std::size_t count = kBytes / size_of(how.element) - round % 3;
      std::vector<std::byte> want(kBytes);
      reduce_rows(want.data(), at, count, how);
      std::vector<std::byte> partial(count * partial_size(how.element));
      std::vector<std::byte> got(kBytes);
      for (std::size_t first = 0; first < ranks;) {
        const std::size_t n = std::min(ranks - first, 1 + derive(3, round, first) % 3);
        const bool last = first + n == ranks;
        reduce_part(last ? got.data() : partial.data(), first == 0 ? nullptr : partial.data(),
                    std::span(at).subspan(first, n), count, how, last ? ranks : 0);
        first += n;
      }
      EXPECT_TRUE(got == want) << name_of(how.op) << " of " << name_of(how.element);
    }
  }
}

TEST(Reduction, RefusesWhatMeansNothing) {
  std::vector<float> floats(3);
  EXPECT_TRUE(check(std::span(floats), Op::kAverage));
  const auto why = [](const Numbers& numbers, Op op) { return check(numbers, op).error().what; };
  EXPECT_EQ(why(std::span(floats), Op::kAnd),
            "there is no bitwise and of float32; use whole numbers or bool");
  EXPECT_EQ(why({floats.data(), 3, Element::kInt32}, Op::kAverage),
            "there is no average of int32; use floats, or a sum");
  EXPECT_EQ(why({floats.data(), 3, Element::kBytes}, Op::kSum),
            "bytes can not be reduced; say what they are");
  EXPECT_EQ(why({floats.data(), 3, Element::kFloat32, static_cast<Location>(1)}, Op::kSum),
            "the numbers lie in memory that no part of this library reaches; copy them to the "
            "host's");
}

}  // namespace
}  // namespace holdfast::collective
