#include "train/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace holdfast::train {
namespace {

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string scratch(const std::string& name) {
  return (std::filesystem::temp_directory_path() /
          ("holdfast-" + std::to_string(::getpid()) + name))
      .string();
}

TEST(Safetensors, CanBeReadBackByTheFormatsRules) {
  const float weight[6] = {1, 2, 3, 4, 5, 6};
  const std::int64_t count = 7;
  const SavedArray arrays[] = {
      {"layer \"1\".weight", "F32", {2, 3}, std::as_bytes(std::span(weight))},
      {"count", "I64", {}, std::as_bytes(std::span(&count, 1))}};
  const Note notes[] = {{"version", "12"}, {"text", "line\nline"}};
  const std::string path = scratch("-tensors");
  ASSERT_TRUE(write_safetensors(path, arrays, notes));
  const std::string file = read_all(path);
  std::filesystem::remove(path);

  std::uint64_t size = 0;
  ASSERT_GE(file.size(), sizeof size);
  std::memcpy(&size, file.data(), sizeof size);
  EXPECT_EQ((8 + size) % 4096, 0U);
  ASSERT_EQ(file.size(), 8 + size + sizeof weight + sizeof count);
  const auto header = nlohmann::json::parse(file.substr(8, size));
  EXPECT_EQ(header["__metadata__"]["version"], "12");
  EXPECT_EQ(header["__metadata__"]["text"], "line\nline");
  const auto& first = header["layer \"1\".weight"];
  EXPECT_EQ(first["dtype"], "F32");
  EXPECT_EQ(first["shape"], nlohmann::json({2, 3}));
  EXPECT_EQ(first["data_offsets"], nlohmann::json({0, 24}));
  EXPECT_EQ(header["count"]["shape"], nlohmann::json::array());
  EXPECT_EQ(header["count"]["data_offsets"], nlohmann::json({24, 32}));
  EXPECT_EQ(std::memcmp(file.data() + 8 + size, weight, sizeof weight), 0);
  EXPECT_EQ(std::memcmp(file.data() + 8 + size + 24, &count, sizeof count), 0);
}

TEST(Safetensors, NamesTheFileThatCanNotBeWrittenAndLeavesNone) {
  const std::string folder = scratch("-nowhere");
  const Status written = write_safetensors(folder + "/file", {}, {});
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().what.find(folder), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(Safetensors, TakesThePlaceOfNoDeviceAndNoFolder) {
  const std::string folder = scratch("-folder");
  std::filesystem::create_directory(folder);
  const std::string pipe = folder + "/pipe";  // Like /dev/null, this is no regular file.
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {folder, pipe}) {
    const Status written = write_safetensors(path, {}, {});
    ASSERT_FALSE(written) << path;
    EXPECT_NE(written.error().what.find(path), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  std::filesystem::remove_all(folder);
}

// A rank that is killed while it saves leaves no file under the wanted name.
TEST(Safetensors, HasNoNameAsLongAsItIsNotWhole) {
  const std::string folder = scratch("-draft");
  std::filesystem::create_directory(folder);
  const int can = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (can < 0) {
    std::filesystem::remove_all(folder);
    GTEST_SKIP() << "the file system has no files without names";
  }
  ::close(can);
  const std::vector<float> many(1 << 20);
  const SavedArray array[] = {{"w", "F32", {1 << 20}, std::as_bytes(std::span(many))}};
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{1 << 20, 1 << 20};  // SIGXFSZ kills the writer after a quarter of the file.
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_DFL);
    ::_exit(write_safetensors(folder + "/file", array, {}) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace holdfast::train
