#include "capi/operations.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "capi/fold.h"

namespace holdfast::capi {
namespace {

using collective::Group;
using collective::Numbers;
using collective::Outcome;

// What every rank sends at a time where the sums are made here.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

// The types that a Group adds up itself.
std::optional<Numbers> numbers_of(const Elements& e) {
  switch (e.dtype) {
    case HF_FLOAT32:
      return std::span(static_cast<float*>(e.data), e.count);
    case HF_FLOAT64:
      return std::span(static_cast<double*>(e.data), e.count);
    case HF_INT32:
      return std::span(static_cast<std::int32_t*>(e.data), e.count);
    case HF_INT64:
      return std::span(static_cast<std::int64_t*>(e.data), e.count);
    default:
      return std::nullopt;
  }
}

bool lies_in(std::span<const std::byte> memory, const Numbers& numbers) {
  return numbers.bytes > 0 && numbers.data >= memory.data() &&
         numbers.data + numbers.bytes <= memory.data() + memory.size();
}

void carry(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

Verdict sum(Group& group, const std::byte* from, const Elements& e, const Numbers& numbers,
            hf_op op) {
  const bool registered = lies_in(group.registered(), numbers);
  if (registered) carry(numbers.data, from, numbers.bytes);
  const Outcome outcome =
      registered ? group.all_reduce(numbers) : group.all_reduce_staged(numbers, from);
  if (outcome == Outcome::kDone && op == HF_AVERAGE) {
    divide(e.data, e.count, e.dtype, static_cast<std::size_t>(group.world_size()));
  }
  return verdict_of(outcome, group);
}

// What each rank puts before its piece, so that ranks that ask for different things find out.
struct Tag {
  std::int32_t dtype;
  std::int32_t op;
  bool operator==(const Tag&) const = default;
};

Verdict compare_tags(const std::byte* rows, std::size_t stride, std::size_t n) {
  Tag first{};
  std::memcpy(&first, rows, sizeof first);
  for (std::size_t k = 1; k < n; ++k) {
    Tag other{};
    std::memcpy(&other, rows + k * stride, sizeof other);
    if (other == first) continue;
    const auto describe = [](Tag t) {
      return cat("the ", name_of(static_cast<hf_op>(t.op)), " of ",
                 name_of(static_cast<hf_dtype>(t.dtype)));
    };
    return {HF_MISMATCH, cat("rank 0 of the group asked for ", describe(first), " and rank ", k,
                             " for ", describe(other))};
  }
  return {};
}

Verdict gather_and_fold(Group& group, const Elements& e, hf_op op) {
  const auto n = static_cast<std::size_t>(group.world_size());
  const std::size_t size = size_of(e.dtype);
  const Tag tag{e.dtype, op};
  auto* data = static_cast<std::byte*>(e.data);
  const std::size_t total = e.count * size;
  std::vector<std::byte> mine(sizeof tag + std::min(kPieceBytes, total));
  std::vector<std::byte> rows(n * mine.size());
  std::memcpy(mine.data(), &tag, sizeof tag);
  std::size_t at = 0;
  do {
    const std::size_t bytes = std::min(kPieceBytes, total - at);
    const std::size_t stride = sizeof tag + bytes;
    if (bytes > 0) std::memcpy(mine.data() + sizeof tag, data + at, bytes);
    const Outcome gathered =
        group.all_gather(std::span(mine).first(stride), std::span(rows).first(n * stride));
    if (gathered != Outcome::kDone) return verdict_of(gathered, group);
    if (Verdict same = compare_tags(rows.data(), stride, n); same.status != HF_OK) return same;
    fold(data + at, rows.data() + sizeof tag, stride, n, bytes / size, e.dtype, op);
    at += bytes;
  } while (at < total);
  return {};
}

// Every rank's sizes of blocks to send and to receive, and whether they fit together. All ranks
// see the same and come to the same verdict.
struct Sizes {
  std::vector<std::uint64_t> table;
  std::size_t n;
  [[nodiscard]] std::uint64_t sent(std::size_t from, std::size_t to) const {
    return table[from * 2 * n + to];
  }
  [[nodiscard]] std::uint64_t expected(std::size_t at, std::size_t from) const {
    return table[at * 2 * n + n + from];
  }
  [[nodiscard]] Verdict check() const {
    for (std::size_t from = 0; from < n; ++from) {
      for (std::size_t to = 0; to < n; ++to) {
        if (sent(from, to) == expected(to, from)) continue;
        return {HF_MISMATCH, cat("rank ", from, " sends ", sent(from, to), " bytes to rank ", to,
                                 ", which expects ", expected(to, from),
                                 " (an all-to-all); the sizes of both must be equal")};
      }
    }
    return {};
  }
};

Verdict exchange_sizes(Group& group, const Blocks& send, const Blocks& receive, Sizes& sizes) {
  std::vector<std::uint64_t> mine = send.bytes;
  mine.insert(mine.end(), receive.bytes.begin(), receive.bytes.end());
  sizes.n = send.bytes.size();
  sizes.table.resize(mine.size() * sizes.n);
  const Outcome told = group.all_gather(std::as_bytes(std::span(mine)),
                                        std::as_writable_bytes(std::span(sizes.table)));
  if (told != Outcome::kDone) return verdict_of(told, group);
  return sizes.check();
}

}  // namespace

Verdict verdict_of(Outcome outcome, const Group& group) {
  switch (outcome) {
    case Outcome::kDone:
      return {};
    case Outcome::kAborted:
      return {HF_ABORTED,
              "a process of the job failed before all ranks had done this; the step will be void"};
    case Outcome::kLeft:
      return {HF_LEFT, group.why()};
    case Outcome::kMismatch:
      return {HF_MISMATCH, group.why()};
  }
  return {};
}

Verdict all_reduce(Group& group, const std::byte* from, Elements to, hf_op op) {
  const auto numbers = numbers_of(to);
  if (numbers && (op == HF_SUM || op == HF_AVERAGE)) return sum(group, from, to, *numbers, op);
  carry(static_cast<std::byte*>(to.data), from, to.count * size_of(to.dtype));
  return gather_and_fold(group, to, op);
}

Verdict reduce_scatter(Group& group, const std::byte* all, Elements mine, hf_op op) {
  const auto n = static_cast<std::size_t>(group.world_size());
  const std::size_t block = mine.count * size_of(mine.dtype);
  const auto sums = std::make_unique_for_overwrite<std::byte[]>(n * block);
  Verdict reduced = all_reduce(group, all, {sums.get(), n * mine.count, mine.dtype}, op);
  if (reduced.status == HF_OK && block > 0) {
    std::memcpy(mine.data, sums.get() + static_cast<std::size_t>(group.rank()) * block, block);
  }
  return reduced;
}

Verdict all_to_all(Group& group, const Blocks& send, const Blocks& receive, bool same) {
  const auto n = static_cast<std::size_t>(group.world_size());
  const auto me = static_cast<std::size_t>(group.rank());
  Sizes sizes{{}, n};
  if (!same) {
    if (Verdict told = exchange_sizes(group, send, receive, sizes); told.status != HF_OK) {
      return told;
    }
  }
  const auto sent = [&](std::size_t from, std::size_t to) {
    return same ? send.bytes[to] : sizes.sent(from, to);
  };
  std::vector<std::byte> copy;
  std::byte* to = receive.data;
  for (std::size_t from = 0; from < n; ++from) {
    std::uint64_t total = 0;
    std::uint64_t offset = 0;
    for (std::size_t k = 0; k < n; ++k) {
      if (k == me) offset = total;
      total += sent(from, k);
    }
    copy.resize(total);
    std::byte* data = from == me ? send.data : copy.data();
    const Outcome came = group.broadcast({data, total}, static_cast<int>(from));
    if (came != Outcome::kDone) return verdict_of(came, group);
    if (receive.bytes[from] > 0) std::memcpy(to, data + offset, receive.bytes[from]);
    to += receive.bytes[from];
  }
  return {};
}

}  // namespace holdfast::capi
