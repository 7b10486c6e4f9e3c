// The beginning of a safetensors file of whoever: its length is bounded, and so is how deep its
// JSON is nested. What it says is for the caller to check.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "os/fd.h"

namespace holdfast::snapshot {

using Json = nlohmann::json;

// How long a header may be: there is room for some 20,000 tensors. To read it takes up to a hundred
// times as much memory.
inline constexpr std::uint64_t kLongestHeader = std::uint64_t{1} << 22;

// Opens a file without waiting, whatever it is. Error: it is no plain file, or not there.
[[nodiscard]] Result<os::Fd> open_to_read(const std::string& path, std::uint64_t& bytes);

// JSON from a stranger's file; discarded if it is none, or nested deeper than our files need: to
// copy or print it takes a stack as deep.
[[nodiscard]] Json parse(const std::string& text);

struct Head {
  os::Fd file;
  std::string text;         // The header, with the spaces behind it.
  std::uint64_t data = 0;   // Where the tensors begin.
  std::uint64_t bytes = 0;  // Of the tensors.
};
// Errors: the file can not be opened, or (kUser) it is none of this format.
[[nodiscard]] Result<Head> read_head(const std::string& path);

}  // namespace holdfast::snapshot
