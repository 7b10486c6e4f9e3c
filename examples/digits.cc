#include "digits.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace {

constexpr std::int64_t kPixels = 28 * 28;
constexpr const char* kHint =
    ": 'tools/make_digits DIR' writes real digits in this format, or put MNIST's files there, "
    "unpacked";

std::vector<std::uint8_t> read_file(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind != std::filesystem::file_type::regular && std::filesystem::exists(path, error)) {
    throw std::runtime_error("the data file " + path + " is no file" + kHint);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("the data file " + path + " is missing" + kHint);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::uint32_t big_endian(const std::vector<std::uint8_t>& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | bytes[at + i];
  return value;
}

// The file is `header` numbers, the first `magic`, the second how many items of `item` bytes
// follow.
std::vector<std::uint8_t> read_items(const std::string& path, std::size_t header,
                                     std::uint32_t magic, std::size_t item) {
  auto bytes = read_file(path);
  if (bytes.size() < 4 * header || big_endian(bytes, 0) != magic) {
    throw std::runtime_error("the data file " + path + " is not in MNIST's format" + kHint);
  }
  const std::size_t expected = 4 * header + big_endian(bytes, 4) * item;
  if (bytes.size() != expected) {
    throw std::runtime_error("the data file " + path + " has " + std::to_string(bytes.size()) +
                             " bytes, but by its header it should have " +
                             std::to_string(expected) + ": it is damaged; make or fetch it again");
  }
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(4 * header));
  return bytes;
}

}  // namespace

Digits::Digits(const std::string& directory, Part part) {
  const std::string prefix = directory + (part == Part::kTraining ? "/train" : "/t10k");
  auto pixels = read_items(prefix + "-images-idx3-ubyte", 4, 2051, kPixels);
  auto labels = read_items(prefix + "-labels-idx1-ubyte", 2, 2049, 1);
  const auto count = static_cast<std::int64_t>(labels.size());
  if (static_cast<std::int64_t>(pixels.size()) != count * kPixels) {
    throw std::runtime_error("the files " + prefix + "-* have " +
                             std::to_string(pixels.size() / kPixels) + " images but " +
                             std::to_string(count) + " labels: they do not belong together");
  }
  for (const std::uint8_t label : labels) {
    if (label > 9) {
      throw std::runtime_error("the data file " + prefix + "-labels-idx1-ubyte has the label " +
                               std::to_string(label) + " where digits are 0 to 9" + kHint);
    }
  }
  images_ = torch::from_blob(pixels.data(), {count, kPixels}, torch::kByte).to(torch::kFloat) / 255;
  labels_ = torch::from_blob(labels.data(), {count}, torch::kByte).to(torch::kLong);
}

torch::data::Example<> Digits::get_batch(c10::ArrayRef<std::size_t> indices) {
  const std::vector<std::int64_t> rows(indices.begin(), indices.end());
  const auto index = torch::tensor(rows, torch::kLong);
  return {images_.index_select(0, index), labels_.index_select(0, index)};
}

std::string describe_digits(const std::string& directory) {
  std::ifstream file(directory + "/SOURCE");
  std::string line;
  return std::getline(file, line) && !line.empty() ? line : "the digits in " + directory;
}
