// Writes named arrays as a safetensors file: 8 bytes of header size, a JSON header, the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace holdfast::train {

struct SavedArray {
  std::string name;
  std::string dtype;  // safetensors' word: F32, I64, U8, ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

struct Note {
  std::string key;
  std::string value;
};

// The header is padded with blanks so that the data begin at a multiple of 4096. The file gets its
// name only when it is complete and on the disk. Errors name the path.
[[nodiscard]] Status write_safetensors(const std::string& path, std::span<const SavedArray> arrays,
                                       std::span<const Note> metadata);

}  // namespace holdfast::train
