#include "arena/layout.h"

#include <algorithm>
#include <span>
#include <sstream>
#include <string_view>

#include "arena/format.h"
#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"

namespace holdfast::arena {
namespace {

constexpr std::string_view kTitle = "holdfast arena layout\n";
// Streams that begin at equal offsets within a page slow one another down (4 KiB aliasing). So each
// region begins five lines further into its page than the one before.
constexpr std::uint64_t kStagger = 5 * kLineFloats * sizeof(float);

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// Region 0: gradients, 1: parameters, 2 and 3: moments.
std::uint64_t region_offset(const Layout& layout, std::uint64_t region) {
  const std::uint64_t room = round_up(layout.gradients_bytes(), kPageBytes) + kPageBytes;
  return layout.gradients_offset() + region * (room + kStagger);
}

std::string describe(const Entry& entry) {
  return cat(entry.name, " (", entry.elements, ")");
}

std::string owner(const Layout& layout) {
  return layout.ward == kNoRank ? "a rank's own" : cat("held for rank ", layout.ward);
}

// The size of to_text(), computed without making the text: every offset depends on it.
std::uint64_t text_bytes(const Layout& layout) {
  const auto digits = [](auto number) { return std::to_string(number).size(); };
  std::uint64_t bytes = kTitle.size() + digits(static_cast<unsigned>(layout.optimizer)) +
                        digits(layout.private_bytes) + digits(layout.ward) +
                        digits(layout.parameters.size()) + 4;
  for (const auto& [name, elements] : layout.parameters) {
    bytes += digits(elements) + digits(name.size()) + name.size() + 3;
  }
  return bytes;
}

}  // namespace

std::size_t moment_count(Optimizer optimizer) {
  if (optimizer == Optimizer::kSgd) return 0;
  return optimizer == Optimizer::kMomentum ? 1 : 2;
}

const char* name(Optimizer optimizer) {
  constexpr const char* kNames[] = {"SGD without momentum", "SGD with momentum", "Adam", "AdamW"};
  return kNames[static_cast<std::size_t>(optimizer)];
}

Layout Layout::held_for(Rank ward, std::uint64_t private_bytes) {
  return {.parameters = {}, .private_bytes = private_bytes, .ward = ward};
}

std::uint64_t Layout::fingerprint() const {
  const std::string text = to_text();
  return digest(std::as_bytes(std::span(text)));
}

std::uint64_t Layout::offset(std::size_t i) const {
  HF_ASSERT(i <= parameters.size());
  std::uint64_t floats = 0;
  for (std::size_t k = 0; k < i; ++k) floats += round_up(parameters[k].elements, kLineFloats);
  return floats;
}

std::uint64_t Layout::gradients_offset() const {
  return round_up(kLayoutOffset + text_bytes(*this), kPageBytes);
}

std::uint64_t Layout::parameters_offset() const {
  return region_offset(*this, 1);
}

std::uint64_t Layout::moments_offset(std::size_t k) const {
  return region_offset(*this, 2 + k);
}

std::uint64_t Layout::private_offset(std::size_t slot) const {
  const std::uint64_t after = region_offset(*this, 2 + moment_count(optimizer));
  return round_up(after, kPageBytes) + slot * round_up(private_bytes, kPageBytes);
}

std::uint64_t Layout::file_bytes() const {
  return private_offset(2);
}

std::string Layout::to_text() const {
  std::string text = cat(kTitle, static_cast<unsigned>(optimizer), '\n', private_bytes, '\n', ward,
                         '\n', parameters.size(), '\n');
  for (const Entry& entry : parameters) {
    text += cat(entry.elements, ' ', entry.name.size(), ' ', entry.name, '\n');
  }
  return text;
}

bool Layout::from_text(const std::string& text, Layout& out) {
  std::istringstream in(text);
  unsigned optimizer = 0;
  std::uint64_t count = 0;
  out = {};
  in.ignore(kTitle.size()) >> optimizer >> out.private_bytes >> out.ward >> count;
  if (optimizer > static_cast<unsigned>(Optimizer::kAdamW)) return false;
  out.optimizer = static_cast<Optimizer>(optimizer);
  for (std::uint64_t i = 0; i < count && in; ++i) {
    Entry entry;
    std::size_t length = 0;
    in >> entry.elements >> length;
    if (length > text.size()) return false;
    entry.name.resize(length);
    in.ignore().read(entry.name.data(), static_cast<std::streamsize>(length));
    out.parameters.push_back(std::move(entry));
  }
  return out.to_text() == text;
}

std::string difference(const Layout& there, const Layout& here) {
  if (there.ward != here.ward) {
    return cat("the state is ", owner(there), " there and ", owner(here), " here");
  }
  if (there.optimizer != here.optimizer) {
    return cat("the optimizer is ", name(there.optimizer), " there and ", name(here.optimizer),
               " here");
  }
  const std::size_t common = std::min(there.parameters.size(), here.parameters.size());
  for (std::size_t i = 0; i < common; ++i) {
    const Entry& a = there.parameters[i];
    const Entry& b = here.parameters[i];
    if (a.name != b.name || a.elements != b.elements) {
      return cat("parameter ", i, " is ", describe(a), " there and ", describe(b), " here");
    }
  }
  if (there.parameters.size() != here.parameters.size()) {
    const bool more = there.parameters.size() > common;
    const Entry& extra = more ? there.parameters[common] : here.parameters[common];
    return cat("parameter ", common, ", ", describe(extra), ", is only ", more ? "there" : "here");
  }
  if (there.private_bytes != here.private_bytes) {
    return cat("the rank's private state is ", there.private_bytes, " bytes there and ",
               here.private_bytes, " here");
  }
  return {};
}

}  // namespace holdfast::arena
