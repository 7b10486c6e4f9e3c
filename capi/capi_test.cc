#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capi/error.h"
#include "include/holdfast/c.h"

namespace holdfast::capi {
namespace {

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

TEST(Tls, AWrongFileIsNamed) {
  EXPECT_EQ(hf_set_tls(nullptr, nullptr, nullptr), HF_USER);
  EXPECT_NE(std::string(hf_last_error()).find("config_file_path"), std::string::npos);
  EXPECT_EQ(hf_set_tls("/nowhere/config.json", "secret", "secret"), HF_USER);
  const std::string said = hf_last_error();
  EXPECT_NE(said.find("/nowhere/config.json"), std::string::npos) << said;
  EXPECT_EQ(said.find("secret"), std::string::npos) << said;
}

// Tests hf_register(): wrong arguments, new memory, and a sum in it.
void expect_registered_memory_to_serve(hf_session* session) {
  hf_memory* memory = nullptr;
  EXPECT_EQ(hf_register(session, nullptr, 100, nullptr), HF_USER);
  EXPECT_EQ(hf_register(session, nullptr, 0, &memory), HF_USER);
  // An odd address: any other might happen to be the start of a page.
  EXPECT_EQ(hf_register(session, reinterpret_cast<char*>(&memory) + 1, 100, &memory), HF_USER);
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

// Tests hf_replicas(): wrong arguments. A process alone has nobody to compare with.
void expect_replicas_within_private_bytes(hf_session* session) {
  const hf_replica outside{.name = "weight", .offset = 4, .bytes = 5};
  EXPECT_EQ(hf_replicas(session, &outside, 1, 3), HF_USER);
  EXPECT_NE(std::string(hf_last_error()).find("5 private bytes from 4"), std::string::npos);
  EXPECT_EQ(hf_replicas(session, nullptr, 1, 3), HF_USER);
  const hf_replica inside{.name = "weight", .offset = 4, .bytes = 4};
  EXPECT_EQ(hf_replicas(session, &inside, 1, 3), HF_OK) << hf_last_error();
  EXPECT_EQ(hf_comparison_due(session, 0), 0);
  EXPECT_EQ(hf_comparison_due(session, 1), 0);
  EXPECT_EQ(hf_compare_replicas(session, nullptr), HF_USER);
}

TEST(CInterface, ASessionThatNobodyJoinsEndsWell) {
  hf_worker* worker = nullptr;
  ASSERT_EQ(hf_start(&worker), HF_OK) << hf_last_error();
  const hf_layout layout{.parameters = nullptr,
                         .parameter_count = 0,
                         .optimizer = HF_SGD,
                         .flags = 0,
                         .private_bytes = 8};
  hf_session* session = nullptr;
  ASSERT_EQ(hf_open(worker, &layout, &session), HF_OK) << hf_last_error();
  EXPECT_EQ(hf_end(session), HF_OK) << hf_last_error();
  hf_close(session);
  hf_stop(worker);
}

TEST(CInterface, TakesMemoryWithinThePrivateBytesAlone) {
  hf_worker* worker = nullptr;
  ASSERT_EQ(hf_start(&worker), HF_OK) << hf_last_error();
  hf_layout layout{.parameters = nullptr,
                   .parameter_count = 0,
                   .optimizer = HF_SGD,
                   .flags = 8 | HF_PRIVATE_AS_USED,
                   .private_bytes = 100'000};
  hf_session* session = nullptr;
  EXPECT_EQ(hf_open(worker, &layout, &session), HF_USER);
  layout.flags = HF_PRIVATE_AS_USED;
  ASSERT_EQ(hf_open(worker, &layout, &session), HF_OK) << hf_last_error();
  const hf_range all{0, 100'000}, beyond{99'999, 2}, far{~std::uint64_t{0}, 2};
  EXPECT_EQ(hf_take(session, &beyond), HF_USER);
  EXPECT_EQ(hf_take(session, &far), HF_USER);
  EXPECT_EQ(hf_take(session, nullptr), HF_USER);
  EXPECT_EQ(hf_take(session, &all), HF_OK) << hf_last_error();
  void* data = nullptr;
  std::uint64_t bytes = 0;
  ASSERT_EQ(hf_private(session, 0, &data, &bytes), HF_OK);
  std::memset(data, 1, bytes);
  EXPECT_EQ(hf_end(session), HF_OK) << hf_last_error();
  hf_close(session);
  hf_stop(worker);
}

// In a process without a job: several threads use the same groups at once.
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
  expect_replicas_within_private_bytes(session);
  expect_registered_memory_to_serve(session);
  std::int32_t local_rank = -1;
  EXPECT_EQ(hf_local_rank(worker, &local_rank), HF_OK);
  EXPECT_EQ(local_rank, 0);
  hf_host host{};
  EXPECT_EQ(hf_hosts(worker, hf_world(session), nullptr), HF_USER);
  EXPECT_EQ(hf_hosts(worker, hf_world(session), &host), HF_OK) << hf_last_error();
  EXPECT_EQ(host.pid, ::getpid());
  EXPECT_STRNE(host.node_id, "");
  EXPECT_STRNE(host.host, "");
  hf_group_close(small);
  EXPECT_EQ(hf_end(session), HF_OK);
  hf_close(session);
  hf_stop(worker);
}

TEST(CInterface, TellsAnExceptionAsAnError) {
  const auto call = [](auto what) {
    try {
      throw what;
    } catch (...) {
      return report_caught();
    }
  };
  EXPECT_EQ(call(std::length_error("no room")), HF_WORLD);
  EXPECT_STREQ(hf_last_error(), "this process can not go on: no room");
  EXPECT_EQ(call(3), HF_WORLD);
  EXPECT_STREQ(hf_last_error(), "this process can not go on: an exception of unknown kind");
}

TEST(CInterface, KeepsTheSentenceOfEachThreadApart) {
  EXPECT_EQ(hf_start(nullptr), HF_USER);
  EXPECT_NE(std::string(hf_last_error()), "");
  std::thread([] { EXPECT_STREQ(hf_last_error(), ""); }).join();
}

}  // namespace
}  // namespace holdfast::capi
