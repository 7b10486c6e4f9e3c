#include "runtime/jobs/arena_parts.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "arena/arrival.h"
#include "base/number.h"
#include "base/text.h"
#include "os/files.h"
#include "runtime/jobs/part_files.h"
#include "snapshot/shard.h"

namespace holdfast::runtime {
namespace {

using arena::Range;
using snapshot::Shard;

constexpr const char* kKind = "a rank's part of a snapshot";
constexpr std::uint64_t kGrain = 4096;  // Slices begin at multiples of it.

// A tensor's name says where in the arena's file its bytes are.
constexpr std::string_view kHeadTensor = "head";
constexpr std::string_view kSharedTensor = "shared.";
constexpr std::string_view kOwnTensor = "own.";

// The ranges of an arena's file that a version needs. The first is the file's beginning.
struct Needs {
  std::uint64_t file_bytes = 0;
  std::vector<Range> ranges;  // As arena::departure() has them.
  std::vector<Range> shared;  // What of them all workers hold alike,
  std::vector<Range> own;     // and what only one rank has and is in use.
};

std::string in_words(const std::vector<Range>& ranges) {
  std::string text;
  for (const auto& [offset, bytes] : ranges)
    text += cat(text.empty() ? "" : " ", offset, '+', bytes);
  return text;
}

// Reads what in_words() has written. nullopt: it has not.
std::optional<std::vector<Range>> ranges_in(std::string_view text) {
  std::vector<Range> ranges;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    const std::size_t plus = word.find('+');
    Range range;
    const bool is_range = plus != std::string_view::npos &&
                          read_number(word.substr(0, plus), range.offset) &&
                          read_number(word.substr(plus + 1), range.bytes);
    if (!is_range || ranges.size() == arena::kMostParts + 3) return std::nullopt;
    ranges.push_back(range);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return ranges;
}

// Which private bytes are in use, by what a version needs. `at`: where the private bytes begin.
std::vector<Range> used_in(std::vector<Range> wanted, std::uint64_t at) {
  std::sort(wanted.begin(), wanted.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  std::vector<Range> used;
  for (const auto& [offset, bytes] : wanted) {
    if (offset < at) continue;
    if (!used.empty() && used.back().offset + used.back().bytes == offset - at) {
      used.back().bytes += bytes;  // A range of which a part is shared.
    } else {
      used.push_back({offset - at, bytes});
    }
  }
  return used;
}

arena::Parts parts_of(const std::vector<Range>& ranges) {
  arena::Parts parts{.count = std::min(ranges.size(), arena::kMostParts + 1), .ranges = {}};
  std::copy_n(ranges.begin(), std::min(ranges.size(), arena::kMostParts), parts.ranges);
  return parts;
}

Needs needs_of(const arena::Arena& arena, const PartOptions& options,
               const arena::Departure& departure) {
  const arena::Layout& layout = arena.layout();
  Needs needs{.file_bytes = departure.file.bytes, .ranges = departure.ranges};
  const std::uint64_t state = layout.parameters_offset();
  if (layout.private_offset(0) > state) {
    needs.shared.push_back({state, layout.private_offset(0) - state});
  }
  const std::uint64_t at = layout.private_offset(arena.version() % 2);
  for (const auto& [offset, bytes] : arena.used(arena.version())) {
    const std::uint64_t middle = std::clamp(options.shared_bytes, offset, offset + bytes);
    if (middle > offset) needs.shared.push_back({at + offset, middle - offset});
    if (offset + bytes > middle) needs.own.push_back({at + middle, offset + bytes - middle});
  }
  return needs;
}

// The slice that this rank gives of a range.
Range slice_of(const Range& range, const PartOptions& options) {
  const auto border = [&](std::int32_t rank) {
    if (rank == options.workers) return range.bytes;
    const std::uint64_t each = range.bytes / static_cast<std::uint64_t>(options.workers);
    return each * static_cast<std::uint64_t>(rank) / kGrain * kGrain;
  };
  const std::uint64_t from = border(options.rank);
  return {range.offset + from, border(options.rank + 1) - from};
}

// The memory of a range behind the head.
const std::byte* memory_of(const arena::Arena& arena, const Range& range) {
  auto& mutable_arena = const_cast<arena::Arena&>(arena);  // Only to be read.
  const arena::Layout& layout = arena.layout();
  if (range.offset < layout.private_offset(0)) {
    const auto* state = reinterpret_cast<const std::byte*>(mutable_arena.parameters().data());
    return state + (range.offset - layout.parameters_offset());
  }
  const std::uint64_t at = layout.private_offset(arena.version() % 2);
  return mutable_arena.private_bytes(arena.version()).data() + (range.offset - at);
}

// The parts of all workers, opened.
class Parts {
 public:
  static Result<Parts> open(const PartFiles& files, const PartOptions& options, Version version) {
    Parts parts;
    for (Rank rank = 0; rank < options.workers; ++rank) {
      auto shard = files.part(rank);
      if (!shard) return shard.error();
      const bool fits = shard->about("kind") == kKind && shard->about("rank") == cat(rank) &&
                        shard->about("version") == cat(version) &&
                        shard->about("workers") == cat(options.workers);
      if (!fits) {
        return files.unfit(rank, cat("it is not rank ", rank, "'s part of version ", version,
                                     " of ", options.workers, " workers"));
      }
      parts.shards_.push_back(*std::move(shard));
    }
    return parts;
  }

  [[nodiscard]] const Shard& at(Rank rank) const { return shards_[static_cast<std::size_t>(rank)]; }

  // All tensors that `rank` needs, by where they belong.
  struct Source {
    const Shard* shard = nullptr;
    const Shard::Tensor* tensor = nullptr;
  };
  [[nodiscard]] std::map<std::uint64_t, Source> sources(Rank rank) const {
    std::map<std::uint64_t, Source> all;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      for (const auto& tensor : shards_[i].tensors()) {
        std::string_view name = tensor.name;
        const bool is_shared = name.starts_with(kSharedTensor);
        const bool is_mine = name.starts_with(kOwnTensor) && i == static_cast<std::size_t>(rank);
        if (!is_shared && !is_mine) continue;
        name.remove_prefix(is_shared ? kSharedTensor.size() : kOwnTensor.size());
        std::uint64_t offset = 0;
        if (read_number(name, offset)) all[offset] = {&shards_[i], &tensor};
      }
    }
    return all;
  }

 private:
  std::vector<Shard> shards_;
};

// Fills the range with the tensors that belong there. Those of `wanted` have to be among them.
// `take` has to be called for memory before it is written to.
Status fill(const std::map<std::uint64_t, Parts::Source>& sources, const Range& range,
            std::span<std::byte> memory, const std::vector<Range>& wanted,
            const std::function<Status(const Range&)>& take,
            const std::function<Error(const std::string&)>& unfit) {
  std::vector<Range> filled;
  for (auto at = sources.lower_bound(range.offset); at != sources.end(); ++at) {
    const auto& [offset, source] = *at;
    const std::uint64_t bytes = source.tensor->bytes;
    if (offset - range.offset >= range.bytes) break;
    if (bytes > range.bytes - (offset - range.offset)) {
      return unfit("its tensors go beyond what they belong to");
    }
    if (Status taken = take({offset, bytes}); !taken) return taken;
    const auto to = memory.subspan(offset - range.offset, bytes);
    if (const auto read = source.shard->read(*source.tensor, to); !read) {
      return PartFiles::unreadable(read.error());
    }
    filled.push_back({offset, bytes});
  }
  for (const auto& [offset, bytes] : wanted) {
    if (offset < range.offset || offset - range.offset >= range.bytes) continue;
    std::uint64_t covered = offset;
    for (const auto& part : filled) {
      if (part.offset <= covered) covered = std::max(covered, part.offset + part.bytes);
    }
    if (covered < offset + bytes) {
      return unfit(cat("its snapshot lacks byte ", covered, " of the state"));
    }
  }
  return {};
}

}  // namespace

Result<ArenaPart> ArenaPart::of(const arena::Arena& arena, const PartOptions& options) {
  const auto departure =
      arena::departure(arena.path(), arena.version(), arena.layout().private_bytes);
  if (!departure) return departure.error();
  const Needs needs = needs_of(arena, options, *departure);
  ArenaPart part;
  part.head_.resize(needs.ranges.front().bytes);
  if (!os::read_at(departure->file.file.get(), 0, part.head_)) {
    return Error{Blame::kWorld, cat("the beginning of ", arena.path(), " can not be read")};
  }
  part.pieces_.push_back({std::string(kHeadTensor), part.head_});
  const auto add = [&](std::string_view kind, const Range& range) {
    if (range.bytes == 0) return;
    part.pieces_.push_back({cat(kind, range.offset), {memory_of(arena, range), range.bytes}});
  };
  for (const Range& range : needs.shared) add(kSharedTensor, slice_of(range, options));
  for (const Range& range : needs.own) add(kOwnTensor, range);
  std::vector<Range> wanted = needs.shared;
  wanted.insert(wanted.end(), needs.own.begin(), needs.own.end());
  part.about_ = {{"kind", kKind},
                 {"rank", cat(options.rank)},
                 {"version", cat(arena.version())},
                 {"workers", cat(options.workers)},
                 {"file_bytes", cat(needs.file_bytes)},
                 {"ranges", in_words(needs.ranges)},
                 {"wanted", in_words(wanted)}};
  return part;
}

Status ArenaPart::write(const std::string& path) const {
  return snapshot::write_shard(path, about_, pieces_);
}

Result<std::uint64_t> load_parts(arena::Arena& arena, const PartOptions& options, Version version,
                                 const std::string& dir, const std::string& name) {
  const auto files = PartFiles::open(dir, name);
  if (!files) return files.error();
  const auto unfit = [&](const std::string& what) { return files->unfit(options.rank, what); };
  const auto parts = Parts::open(*files, options, version);
  if (!parts) return parts.error();
  const Shard& mine = parts->at(options.rank);
  arena::Arrival::Coming coming{.from = arena::Arrival::From::kRank,
                                .name = files->path(options.rank)};
  coming.of_any_run = true;
  const auto ranges = ranges_in(mine.about("ranges"));
  const auto wanted = ranges_in(mine.about("wanted"));
  const Shard::Tensor* head = mine.find(std::string(kHeadTensor));
  const bool is_whole = ranges && wanted && !ranges->empty() && head != nullptr &&
                        head->bytes == ranges->front().bytes &&
                        read_number(mine.about("file_bytes"), coming.file_bytes);
  if (!is_whole) return unfit("it does not say what the rank needs");
  coming.ranges = *ranges;
  arena::Arrival arrival(arena, version, arena.layout().private_bytes);
  const auto beginning = arrival.place(coming, 0);
  if (!beginning) return beginning.error();
  if (const auto read = mine.read(*head, *beginning); !read) {
    return PartFiles::unreadable(read.error());
  }
  const auto sources = parts->sources(options.rank);
  const auto take = [&](const Range& range) { return arrival.take(coming.from, range); };
  for (std::size_t i = 1; i < coming.ranges.size(); ++i) {
    const auto memory = arrival.place(coming, i);
    if (!memory) return memory.error();
    const auto filled = fill(sources, coming.ranges[i], *memory, *wanted, take, unfit);
    if (!filled) return filled.error();
  }
  if (const auto came = arrival.came(coming); !came) return came.error();
  const auto used = used_in(*wanted, arena.layout().private_offset(version % 2));
  const arena::Parts fitting = parts_of(used);
  if (!fitting.fit(arena.layout().private_bytes)) return unfit("its ranges are no version's");
  if (const auto ended = arrival.end(used); !ended) return ended.error();
  return arrival.bytes();
}

}  // namespace holdfast::runtime
