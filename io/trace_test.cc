#include "io/trace.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "io/testing.h"
#include "os/files.h"
#include "os/host.h"

namespace holdfast::io {
namespace {

TEST(Trace, WritesOneLineOfJsonPerEvent) {
  const TemporaryFolder folder;
  const auto trace = Trace::open_from(folder.path(), "worker");
  ASSERT_TRUE(trace && trace->on());
  const Instant before = Loop::now();
  const std::string text = "a \"b\"\n";
  const std::string path = folder / cat("worker-", os::host_name(), '-', ::getpid(), ".jsonl");
  const std::string first = *os::read_file(path);
  const std::string clock = cat(",\"event\":\"clock\",\"pid\":", ::getpid(), ",\"boot\":\"",
                                os::boot_name(), "\",\"wall_ns\":");
  ASSERT_NE(first.find(clock), std::string::npos) << first;
  const auto wall = std::stoll(first.substr(first.find(clock) + clock.size()));
  EXPECT_LT(std::abs(wall / 1'000'000'000 - ::time(nullptr)), 60);
  trace->event("step", {{"rank", 0},
                        {"step", std::uint64_t{18446744073709551615U}},
                        {"least", std::numeric_limits<std::int64_t>::min()},
                        {"loss", 0.1},
                        {"nan", std::nan("")},
                        {"infinite", -std::numeric_limits<float>::infinity()},
                        {"good", true},
                        {"why", text},
                        {"word", "plain"}});
  trace->event("bare");
  const std::string bytes = os::read_file(path)->substr(first.size());
  const std::string_view start = "{\"t_ns\":";
  ASSERT_TRUE(bytes.starts_with(start));
  const std::size_t comma = bytes.find(',');
  const Instant at(std::stoll(bytes.substr(start.size(), comma - start.size())));
  EXPECT_GE(at, before);
  EXPECT_LE(at, Loop::now());
  const std::size_t end = bytes.find('\n');
  EXPECT_EQ(
      bytes.substr(comma, end - comma),
      cat(",\"event\":\"step\",\"pid\":", ::getpid(),
          ",\"rank\":0,\"step\":18446744073709551615,\"least\":-9223372036854775808,\"loss\":0.1,"
          "\"nan\":null,\"infinite\":null,\"good\":true,\"why\":\"a \\\"b\\\"\\n\","
          "\"word\":\"plain\"}"));
  EXPECT_TRUE(bytes.ends_with(cat(",\"event\":\"bare\",\"pid\":", ::getpid(), "}\n")));
}

TEST(Trace, IsOffWithoutAFolder) {
  const auto trace = Trace::open_from("", "worker");
  ASSERT_TRUE(trace);
  EXPECT_FALSE(trace->on());
  trace->event("step", {{"rank", 1}});
  Trace().event("step");
}

TEST(Trace, NamesAFolderThatCanNotBeMade) {
  const auto trace = Trace::open_from("/proc/self/status/folder", "agent");
  ASSERT_FALSE(trace);
  EXPECT_NE(trace.error().what.find("/proc/self/status"), std::string::npos);
}

TEST(Trace, KeepsTheLinesOfManyThreadsWhole) {
  const TemporaryFolder folder;
  auto trace = Trace::open_from(folder.path(), "w");
  ASSERT_TRUE(trace);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([copy = *trace, i] {
      for (int step = 0; step < 500; ++step) copy.event("step", {{"thread", i}, {"step", step}});
    });
  }
  for (auto& thread : threads) thread.join();
  const std::string bytes =
      *os::read_file(folder / cat("w-", os::host_name(), '-', ::getpid(), ".jsonl"));
  int lines = 0;
  for (std::size_t at = 0; at < bytes.size(); ++lines) {
    const std::size_t end = bytes.find('\n', at);
    const std::string_view line = std::string_view(bytes).substr(at, end - at);
    EXPECT_TRUE(line.starts_with("{\"t_ns\":") && line.ends_with('}')) << line;
    EXPECT_EQ(line.find('{', 1), std::string_view::npos) << line;
    at = end + 1;
  }
  EXPECT_EQ(lines, 2001) << "that of the clock included";
}

TEST(Trace, WritesAnyBytesAsJson) {
  const TemporaryFolder folder;
  const auto trace = Trace::open_from(folder.path(), "w");
  ASSERT_TRUE(trace);
  trace->event("said", {{"text", "a\\\x01\t ü€𝄞 \xff."}, {"none", std::string_view("\0", 1)}});
  const std::string bytes =
      *os::read_file(folder / cat("w-", os::host_name(), '-', ::getpid(), ".jsonl"));
  EXPECT_TRUE(
      bytes.ends_with(",\"text\":\"a\\\\\\u0001\\t ü€𝄞 \xef\xbf\xbd.\",\"none\":\"\\u0000\"}\n"))
      << bytes;
}

}  // namespace
}  // namespace holdfast::io
