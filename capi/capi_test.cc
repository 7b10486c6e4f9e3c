#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "capi/fold.h"
#include "capi/queue.h"
#include "include/holdfast/c.h"

namespace holdfast::capi {
namespace {

using namespace std::chrono_literals;

template <class T>
std::vector<T> folded(const std::vector<std::vector<T>>& rows, hf_dtype dtype, hf_op op) {
  std::vector<T> memory;
  for (const auto& row : rows) memory.insert(memory.end(), row.begin(), row.end());
  std::vector<T> out(rows[0].size());
  fold(out.data(), reinterpret_cast<const std::byte*>(memory.data()), out.size() * sizeof(T),
       rows.size(), out.size(), dtype, op);
  return out;
}

std::uint16_t half(double value) {  // By brute force: the nearest, ties to an even pattern.
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

TEST(Fold, KeepsEveryFloat16ThatItIsGivenAlone) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto given = static_cast<std::uint16_t>(bits);
    const bool nan = (given & 0x7c00) == 0x7c00 && (given & 0x3ff) != 0;
    const auto got = folded<std::uint16_t>({{given}}, HF_FLOAT16, HF_SUM)[0];
    if (nan) {
      ASSERT_TRUE((got & 0x7c00) == 0x7c00 && (got & 0x3ff) != 0) << bits;
    } else {
      ASSERT_EQ(got, given);
    }
  }
}

TEST(Fold, RoundsASumOfFloat16ToTheNearest) {
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
      const auto got = folded<std::uint16_t>({{x}, {y}}, HF_FLOAT16, HF_SUM)[0];
      ASSERT_EQ(got, half(exact)) << a << " + " << b;
    }
  }
}

TEST(Fold, RoundsOnceAndNotAfterEveryRank) {
  // 2048 + 1 is 2048 in float16, twice; the sum of all three is 2050.
  const auto got = folded<std::uint16_t>({{half(2048)}, {half(1)}, {half(1)}}, HF_FLOAT16, HF_SUM);
  EXPECT_EQ(got[0], half(2050));
}

TEST(Fold, GivesInfinityBeyondTheGreatestFloat16) {
  const std::uint16_t greatest = 0x7bff;
  EXPECT_EQ(folded<std::uint16_t>({{greatest}, {greatest}}, HF_FLOAT16, HF_SUM)[0], 0x7c00);
}

TEST(Fold, AddsInRankOrder) {
  const std::vector<std::vector<float>> rows{{1e8F}, {-1e8F}, {1.0F}};
  EXPECT_EQ(folded(rows, HF_FLOAT32, HF_SUM)[0], 1.0F);
  const std::vector<std::vector<float>> others{{1.0F}, {1e8F}, {-1e8F}};
  EXPECT_EQ(folded(others, HF_FLOAT32, HF_SUM)[0], 0.0F);
}

TEST(Fold, WrapsWholeNumbersRound) {
  EXPECT_EQ((folded<std::int8_t>({{127}, {1}}, HF_INT8, HF_SUM)[0]), -128);
  EXPECT_EQ((folded<std::uint8_t>({{200}, {100}}, HF_UINT8, HF_SUM)[0]), 44);
  EXPECT_EQ((folded<std::int16_t>({{300}, {300}}, HF_INT16, HF_PRODUCT)[0]), 24464);
  const std::int64_t low = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ((folded<std::int64_t>({{low}, {-1}}, HF_INT64, HF_PRODUCT)[0]), low);
}

TEST(Fold, LetsNotANumberWin) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const hf_op op : {HF_MIN, HF_MAX, HF_SUM, HF_PRODUCT}) {
    EXPECT_TRUE(std::isnan(folded<float>({{1.0F}, {nan}}, HF_FLOAT32, op)[0]));
    EXPECT_TRUE(std::isnan(folded<float>({{nan}, {1.0F}}, HF_FLOAT32, op)[0]));
  }
}

TEST(Copy, CopiesEveryByteAndNoOther) {
  constexpr std::size_t kRoom = 3 * 4096;
  alignas(64) static std::array<unsigned char, kRoom> from, to;
  for (std::size_t i = 0; i < kRoom; ++i) from[i] = static_cast<unsigned char>(i * 7 + 1);
  const std::array<std::uint64_t, 7> sizes = {0, 1, 4095, 4096, 4099, 8195, 10000};
  for (const std::size_t to_at : {0U, 1U, 16U, 20U}) {
    for (const std::size_t from_at : {0U, 1U, 4U, 64U}) {
      for (const std::uint64_t size : sizes) {
        to.fill(0);
        // Two ranges, one after the other.
        const std::uint64_t half = size / 2;
        const std::array<void*, 2> outs = {&to[to_at], &to[to_at + half]};
        const std::array<const void*, 2> ins = {&from[from_at], &from[from_at + half]};
        const std::array<std::uint64_t, 2> bytes = {half, size - half};
        hf_copy(2, outs.data(), ins.data(), bytes.data());
        for (std::size_t i = 0; i < kRoom; ++i) {
          const bool is_in = i >= to_at && i < to_at + size;
          ASSERT_EQ(to[i], is_in ? from[from_at + i - to_at] : 0)
              << i << " of " << size << " from " << from_at << " to " << to_at;
        }
      }
    }
  }
}

TEST(Digest, IsThatOfEachRangeAloneAndTellsOneBitApart) {
  std::array<unsigned char, 1000> bytes{};
  const std::array<const void*, 3> data = {bytes.data(), nullptr, &bytes[1]};
  const std::array<std::uint64_t, 3> sizes = {999, 0, 999};
  std::array<std::uint64_t, 3> digests{};
  hf_digest(3, data.data(), sizes.data(), digests.data());
  EXPECT_EQ(digests[0], digests[2]);
  EXPECT_EQ(digests[1], 0x2d06800538d394c2U);  // XXH3_64bits of nothing, as its authors give it.
  bytes[999] = 1;
  hf_digest(3, data.data(), sizes.data(), digests.data());
  EXPECT_NE(digests[0], digests[2]);
}

TEST(Queue, RunsInTheOrderOfStartingAndTellsWhatIsNotYetDone) {
  Queue queue;
  std::atomic<bool> go{false};
  std::vector<int> order;
  const auto first = queue.start([&] {
    go.wait(false);
    order.push_back(1);
    return Verdict{};
  });
  const auto second = queue.start([&] {
    order.push_back(2);
    return Verdict{HF_PEER, "no"};
  });
  EXPECT_EQ(first->wait(0ns).status, HF_PENDING);
  EXPECT_FALSE(queue.is_idle());
  go = true;
  go.notify_all();
  EXPECT_EQ(second->wait(-1ns).status, HF_PEER);
  EXPECT_EQ(first->wait(0ns).status, HF_OK);
  queue.drain();
  EXPECT_TRUE(queue.is_idle());
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(Queue, EndsWithWhatWasStarted) {
  int ran = 0;
  {
    Queue queue;
    for (int i = 0; i < 100; ++i) {
      static_cast<void>(queue.start([&] {
        ++ran;
        return Verdict{};
      }));
    }
  }
  EXPECT_EQ(ran, 100);
}

// What hf_register() gives, takes and refuses.
void expect_registered_memory_to_serve(hf_session* session) {
  hf_memory* memory = nullptr;
  EXPECT_EQ(hf_register(session, nullptr, 100, nullptr), HF_USER);
  EXPECT_EQ(hf_register(session, nullptr, 0, &memory), HF_USER);
  EXPECT_EQ(hf_register(session, &memory, 100, &memory), HF_USER);
  EXPECT_NE(std::string(hf_last_error()).find("multiple of 4096"), std::string::npos);
  ASSERT_EQ(hf_register(session, nullptr, 100, &memory), HF_OK) << hf_last_error();
  auto* numbers = static_cast<float*>(hf_memory_data(memory));
  EXPECT_EQ(numbers[24], 0.0F);
  numbers[24] = 3.0F;
  ASSERT_EQ(hf_begin_step(session, nullptr), HF_OK) << hf_last_error();
  EXPECT_EQ(hf_all_reduce(hf_world(session), numbers, 25, HF_FLOAT32, HF_AVERAGE, nullptr), HF_OK);
  EXPECT_EQ(numbers[24], 3.0F);
  float found = 0;
  EXPECT_EQ(::pread(hf_memory_file(memory), &found, 4, 96), 4);
  EXPECT_EQ(found, 3.0F);
  hf_unregister(memory);
  hf_unregister(nullptr);
}

// In a world of its own: what threads may do at once.
TEST(CInterface, ServesThreadsThatUseOneGroupOneAfterTheOther) {
  hf_worker* worker = nullptr;
  ASSERT_EQ(hf_start(&worker), HF_OK) << hf_last_error();
  const hf_layout layout{.parameters = nullptr,
                         .parameter_count = 0,
                         .optimizer = HF_SGD,
                         .flags = 0,
                         .private_bytes = 8};
  hf_session* session = nullptr;
  ASSERT_EQ(hf_open(worker, &layout, &session), HF_OK) << hf_last_error();
  EXPECT_EQ(hf_marked(session), 1);
  ASSERT_EQ(hf_join(session, nullptr), HF_OK);
  const std::int32_t me = 0;
  hf_group* small = nullptr;
  ASSERT_EQ(hf_group_open(session, &me, 1, "small", &small), HF_OK);
  for (int step = 0; step < 3; ++step) {
    ASSERT_EQ(hf_begin_step(session, nullptr), HF_OK) << hf_last_error();
    EXPECT_EQ(hf_marked(session), 0);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        hf_group* group = t % 2 == 0 ? hf_world(session) : small;
        std::array<float, 8> numbers{};
        numbers.fill(static_cast<float>(t));
        for (int k = 0; k < 50; ++k) {
          hf_work* work = nullptr;
          EXPECT_EQ(hf_all_reduce(group, numbers.data(), 8, HF_FLOAT32, HF_SUM,
                                  k % 2 == 0 ? &work : nullptr),
                    HF_OK);
          EXPECT_TRUE(work == nullptr || hf_wait(work, -1) == HF_OK);
          hf_release(work);
          EXPECT_EQ(numbers[7], static_cast<float>(t));
          std::array<float, 8> sums{};
          EXPECT_EQ(hf_all_reduce_into(group, numbers.data(), sums.data(), 8, HF_FLOAT32, HF_SUM,
                                       nullptr),
                    HF_OK);
          EXPECT_EQ(sums, numbers);
        }
        EXPECT_EQ(hf_marked(session), 0);
      });
    }
    for (auto& thread : threads) thread.join();
    const hf_step arguments{};
    ASSERT_EQ(hf_end_step(session, &arguments, nullptr), HF_OK) << hf_last_error();
  }
  EXPECT_EQ(hf_version(session), 3U);
  expect_registered_memory_to_serve(session);
  hf_group_close(small);
  EXPECT_EQ(hf_end(session), HF_OK);
  hf_close(session);
  hf_stop(worker);
}

TEST(CInterface, KeepsTheSentenceOfEachThreadApart) {
  EXPECT_EQ(hf_start(nullptr), HF_USER);
  EXPECT_NE(std::string(hf_last_error()), "");
  std::thread([] { EXPECT_STREQ(hf_last_error(), ""); }).join();
}

}  // namespace
}  // namespace holdfast::capi
