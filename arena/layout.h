// What an arena holds: the parameters by name and size, the optimizer, the bytes a rank keeps
// private. What is held for a rank of another host is an arena of private bytes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace holdfast::arena {

// PyTorch's meaning of each (torch.optim.SGD without and with momentum, Adam, AdamW). The exact
// order of the float operations is written in arena/kernels.h.
enum class Optimizer : std::uint8_t { kSgd, kMomentum, kAdam, kAdamW };

// Float arrays kept beside each parameter: 0 (kSgd), 1 (kMomentum: the buffer), 2 (kAdam*: m, v).
[[nodiscard]] std::size_t moment_count(Optimizer optimizer);
[[nodiscard]] const char* name(Optimizer optimizer);

// All arrays are cut into lines of 128 bytes, the grain of the update's undo.
inline constexpr std::uint64_t kLineFloats = 32;

struct Entry {
  std::string name;            // As a person knows it: "conv1.weight".
  std::uint64_t elements = 0;  // float32 values.
};

// Two ranks with equal layouts have equal files: every offset below depends on the layout alone.
struct Layout {
  std::vector<Entry> parameters;
  Optimizer optimizer = Optimizer::kSgd;
  std::uint64_t private_bytes = 0;  // Size of what differs between ranks; kept twice.
  Rank ward = kNoRank;              // Held for this rank of another host; kNoRank: a rank's own.

  [[nodiscard]] static Layout held_for(Rank ward, std::uint64_t private_bytes);

  // A digest of all above: equal for equal layouts, different for others but for a chance of 2^-64.
  [[nodiscard]] std::uint64_t fingerprint() const;

  // Where parameter i begins within each region (parameters, each moment, gradients), in floats;
  // a multiple of kLineFloats. offset(parameters.size()) is region_floats().
  [[nodiscard]] std::uint64_t offset(std::size_t i) const;
  // Floats in each region: every parameter is padded with zeros to whole lines.
  [[nodiscard]] std::uint64_t region_floats() const { return offset(parameters.size()); }

  // Offsets in the file, in bytes. Gradients begin at a page, so that a peer can map them alone.
  [[nodiscard]] std::uint64_t gradients_offset() const;
  [[nodiscard]] std::uint64_t gradients_bytes() const { return region_floats() * sizeof(float); }
  [[nodiscard]] std::uint64_t parameters_offset() const;
  [[nodiscard]] std::uint64_t moments_offset(std::size_t k) const;
  [[nodiscard]] std::uint64_t private_offset(std::size_t slot) const;  // slot 0 or 1
  [[nodiscard]] std::uint64_t file_bytes() const;

  // The layout as text, as it stands in the file, and back. from_text gives false for bytes that
  // to_text did not write.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static bool from_text(const std::string& text, Layout& out);
};

// Names the first difference in one clause: "parameter 3 is fc.bias (10) there and fc.bias (20)
// here". Empty if the layouts are equal.
[[nodiscard]] std::string difference(const Layout& there, const Layout& here);

}  // namespace holdfast::arena
