#include "train/drift.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"
#include "base/text.h"

namespace holdfast::train {
namespace {

constexpr std::uint64_t kShare = 1000;     // Comparing may take 1 / kShare of the steps' time.
constexpr std::uint64_t kUntilTimed = 16;  // Steps between comparisons until a step was timed.

// The two ranks of a sentence: `rank` holds other values than `than`.
struct Pair {
  std::size_t rank = 0;
  std::size_t than = 0;
};

// `digest_of(r)` is the digest of rank r. `than` becomes the lowest rank of the largest group of
// equal ranks; `rank` the lowest one outside of that group. rank == than: all are equal.
template <class DigestOf>
Pair odd_one(std::size_t ranks, DigestOf digest_of) {
  Pair pair;
  std::size_t most = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::size_t alike = 0;
    for (std::size_t other = 0; other < ranks; ++other) alike += digest_of(other) == digest_of(r);
    if (alike <= most) continue;
    most = alike;
    pair.than = r;
  }
  while (pair.rank < ranks && digest_of(pair.rank) == digest_of(pair.than)) ++pair.rank;
  if (pair.rank == ranks) pair.rank = pair.than;
  return pair;
}

}  // namespace

bool Pace::is_due(Generation generation, Version version, bool at_end) const {
  if (generation != generation_) return true;
  return version != version_ && (at_end || version >= next_);
}

void Pace::compared(Generation generation, Version version, std::span<const Reading> readings) {
  generation_ = generation;
  version_ = version;
  next_ = version + steps_between(readings);
}

std::uint64_t steps_between(std::span<const Reading> readings) {
  // The least time of an exchange is its cost: the rank that comes last does not wait for others.
  std::uint64_t exchange = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t read = 0;
  std::uint64_t step = std::numeric_limits<std::uint64_t>::max();
  for (const Reading& r : readings) {
    read = std::max(read, r.read);
    exchange = std::min(exchange, r.exchange);
    step = std::min(step, r.step);
  }
  if (step == 0) return kUntilTimed;
  return std::max<std::uint64_t>(1, (kShare * (read + exchange) + step - 1) / step);
}

std::string Differences::name_new(std::span<const std::uint64_t> digests, Version version) {
  HF_ASSERT(!names_.empty() && digests.size() % names_.size() == 0);
  const std::size_t ranks = digests.size() / names_.size();
  std::string clause;
  std::size_t more = 0;
  for (std::size_t t = 0; t < names_.size(); ++t) {
    const Pair pair = odd_one(ranks, [&](std::size_t r) { return digests[r * names_.size() + t]; });
    if (pair.rank == pair.than || named_[t]) continue;
    named_[t] = true;
    if (!clause.empty()) {
      ++more;
      continue;
    }
    clause = cat("rank ", pair.rank, " holds other values of `", names_[t], "` than rank ",
                 pair.than, " after step ", version);
  }
  if (more > 0) {
    clause +=
        cat(" (", more, more == 1 ? " other tensor differs" : " other tensors differ", ", too)");
  }
  return clause;
}

}  // namespace holdfast::train
