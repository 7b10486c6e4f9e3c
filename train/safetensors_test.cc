#include "train/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

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

}  // namespace
}  // namespace holdfast::train
