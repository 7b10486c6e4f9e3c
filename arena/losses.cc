#include "arena/losses.h"

#include <algorithm>

#include "arena/format.h"

namespace holdfast::arena {
namespace {

class Finder {
 public:
  Finder(const Layout& layout, std::uint64_t shared_bytes)
      : layout_(layout), shared_(shared_bytes) {}

  void lose(const Range& range, bool may_have_updated, const std::vector<Version>& versions) {
    const std::uint64_t size = layout_.gradients_bytes();
    if (may_have_updated) lose_lines(overlap(range, {layout_.gradients_offset(), size}));
    for (const std::uint64_t region : regions()) lose_lines(overlap(range, {region, size}));
    for (const Version version : versions) {
      const std::uint64_t at = layout_.private_offset(version % 2);
      const Range lost = overlap(range, {at, layout_.private_bytes});
      if (lost.bytes == 0) continue;
      const Range common = overlap({at + lost.offset, lost.bytes}, {at, shared_});
      if (common.bytes > 0) found_.shared.push_back({at + common.offset, common.bytes});
      if (common.bytes < lost.bytes) found_.is_private = true;
    }
  }

  Damage found() {
    auto& all = found_.shared;
    std::sort(all.begin(), all.end(),
              [](const Range& a, const Range& b) { return a.offset < b.offset; });
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return std::move(found_);
  }

 private:
  // What of the range lies in `in`, from its beginning on.
  static Range overlap(const Range& range, const Range& in) {
    const std::uint64_t from = std::max(range.offset, in.offset);
    const std::uint64_t to = std::min(range.offset + range.bytes, in.offset + in.bytes);
    return from < to ? Range{from - in.offset, to - from} : Range{};
  }

  // Where the parameters and each moment begin.
  [[nodiscard]] std::vector<std::uint64_t> regions() const {
    std::vector<std::uint64_t> all{layout_.parameters_offset()};
    for (std::size_t k = 0; k < moment_count(layout_.optimizer); ++k) {
      all.push_back(layout_.moments_offset(k));
    }
    return all;
  }

  void lose_lines(const Range& lines) {
    if (lines.bytes == 0) return;
    for (const std::uint64_t region : regions()) {
      found_.shared.push_back({region + lines.offset, lines.bytes});
    }
  }

  const Layout& layout_;
  const std::uint64_t shared_;
  Damage found_;
};

}  // namespace

os::LossList losses_of(const Arena& arena) {
  os::LossList losses{.count = load(arena.losses().count)};
  std::copy_n(arena.losses().losses, losses.all().size(), losses.losses);
  return losses;
}

Damage damage_of(const Arena& arena, std::uint64_t shared_bytes, bool may_have_updated) {
  if (arena.fresh() || load(arena.losses().count) == 0) return {};
  const os::LossList losses = losses_of(arena);
  std::vector<Version> versions{arena.version()};
  if (arena.staged() != arena.version()) versions.push_back(arena.staged());
  const Layout& layout = arena.layout();
  Finder finder(layout, std::min(shared_bytes, layout.private_bytes));
  const std::uint64_t from = layout.gradients_offset();
  const std::uint64_t all = layout.file_bytes() - from;
  if (!losses.is_whole()) finder.lose({from, all}, true, versions);
  for (const auto& [offset, bytes] : losses.all()) {
    // The list may lie in a file: no number in it is trusted.
    if (offset >= all) continue;
    finder.lose({from + offset, std::min(bytes, all - offset)}, may_have_updated, versions);
  }
  Damage damage = finder.found();
  damage.count = losses.count;
  return damage;
}

}  // namespace holdfast::arena
