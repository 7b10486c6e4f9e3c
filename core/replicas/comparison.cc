#include "core/replicas/comparison.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"
#include "base/text.h"

namespace holdfast::replicas {
namespace {

constexpr std::uint64_t kShare = 1000;     // Comparing may take 1 / kShare of the steps' time.
constexpr std::uint64_t kUntilTimed = 16;  // Steps between comparisons until a step was timed.
constexpr std::uint64_t kMost = 100'000;   // Steps between comparisons.

// Who holds other values of one replica: `rank` is the lowest rank that differs from `than`, the
// lowest one of the largest group of equal ranks. rank == than: all are equal.
struct Unlike {
  std::size_t tensor = 0;
  std::size_t rank = 0;
  std::size_t than = 0;
  bool has_majority = false;  // More than half of those that count are of that group.
  std::uint64_t all = 0;      // Who differs from `than`, as Reading::blamed.
};

template <class DigestOf>
Unlike odd_one(const std::vector<bool>& is_copy, DigestOf digest_of) {
  Unlike found;
  const std::size_t ranks = is_copy.size();
  std::size_t most = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::size_t alike = 0;
    for (std::size_t other = 0; other < ranks; ++other) {
      alike += !is_copy[other] && digest_of(other) == digest_of(r);
    }
    if (alike <= most) continue;
    most = alike;
    found.than = r;
  }
  found.rank = found.than;
  for (std::size_t r = ranks; r-- > 0;) {
    if (digest_of(r) == digest_of(found.than)) continue;
    found.rank = r;
    found.all |= std::uint64_t{1} << r % 64;
  }
  found.has_majority =
      2 * most > static_cast<std::size_t>(std::count(is_copy.begin(), is_copy.end(), false));
  return found;
}

}  // namespace

bool Comparison::is_due(Generation generation, At at, bool at_end) const {
  if (generation != generation_) return true;
  if (at.version == at_.version) return false;
  return at_end || at.version >= next_ || (relapse_ != 0 && at.step == relapse_);
}

void Comparison::tell(Reading& mine) const {
  mine.relapse = relapse_;
  mine.blamed = blamed_;
  mine.row = row_;
  mine.alike = alike_;
}

Comparison::Heard Comparison::heard(Generation generation, At at,
                                    std::span<const Reading> readings) {
  generation_ = generation;
  at_ = at;
  is_copy_.clear();
  for (const Reading& r : readings) {
    if (r.relapse > relapse_) {
      relapse_ = r.relapse;
      blamed_ = row_ = 0;
    }
    if (r.relapse == relapse_) {  // One may have seen more of them than another.
      blamed_ |= r.blamed;
      row_ = std::max(row_, r.row);
    }
    alike_ = std::max(alike_, r.alike);
    is_copy_.push_back(r.is_copy != 0);
  }
  const bool all_have_some =
      std::all_of(readings.begin(), readings.end(), [](const Reading& r) { return r.names != 0; });
  if (!all_have_some) {  // They may come with the first steps.
    next_ = at.version + (at.version < 2 ? 1 : kUntilTimed);
    return Heard::kAlike;
  }
  next_ = at.version + (options_.every > 0 ? options_.every : steps_between(readings));
  if (look_at_names(readings)) return unlike_names_.empty() ? Heard::kAlike : Heard::kOtherNames;
  const auto same = [&](const Reading& r) { return r.digest == readings[0].digest; };
  if (!std::all_of(readings.begin(), readings.end(), same)) return Heard::kUnlike;
  alike_ = at.step;
  return Heard::kAlike;
}

bool Comparison::look_at_names(std::span<const Reading> readings) {
  bool differ = false;
  std::vector<std::size_t> found;
  for (std::size_t r = 1; r < readings.size(); ++r) {
    if (readings[r].names == readings[0].names) continue;
    differ = true;
    if (!options_.warns_only || unlike_.insert(r).second) found.push_back(r);
  }
  unlike_names_.clear();
  if (found.empty()) return differ;
  const auto more = static_cast<std::int64_t>(found.size()) - 1;
  unlike_names_ =
      cat("rank ", found[0], more > 0 ? cat(" (and ", counted(more, "other rank"), ")") : "",
          " keeps other parameters, or other state of its optimizer, than rank 0");
  return true;
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
  return std::clamp<std::uint64_t>((kShare * (read + exchange) + step - 1) / step, 1, kMost);
}

void Comparison::note_repair(std::uint64_t blamed) {
  const bool is_same = relapse_ == at_.step + 1;  // That repair was cut short.
  if (!is_same) row_ = relapse_ == at_.step ? row_ + 1 : 1;
  blamed_ = is_same ? blamed_ | blamed : blamed;
  relapse_ = at_.step + 1;
}

Verdict Comparison::judge(std::span<const std::string> names,
                          std::span<const std::uint64_t> digests) {
  HF_ASSERT(!names.empty() && digests.size() == names.size() * is_copy_.size());
  std::vector<Unlike> found;
  for (std::size_t t = 0; t < names.size(); ++t) {
    Unlike one = odd_one(is_copy_, [&](std::size_t r) { return digests[r * names.size() + t]; });
    one.tensor = t;
    if (one.rank != one.than) found.push_back(one);
  }
  std::uint64_t differ = 0;
  for (const Unlike& one : found) differ |= one.all;
  const bool follows = at_.step == relapse_ && relapse_ != 0;
  const bool again = follows && ((differ & blamed_) != 0 || row_ >= kMostInRow);
  const bool has_majority =
      std::all_of(found.begin(), found.end(), [](const Unlike& one) { return one.has_majority; });
  Verdict verdict;
  if (!options_.warns_only) {
    verdict.act = has_majority && !again ? Verdict::Act::kRepair : Verdict::Act::kEnd;
  }
  if (verdict.act == Verdict::Act::kRepair) {
    for (const Unlike& one : found) verdict.copies.push_back({one.tensor, one.than});
    note_repair(differ);
  }
  if (options_.warns_only) {
    std::erase_if(found, [&](const Unlike& o) { return !named_.insert(names[o.tensor]).second; });
  }
  if (found.empty()) return verdict;
  const auto is_again = [&](const Unlike& one) { return again && (one.all & blamed_) != 0; };
  const auto relapsed = std::find_if(found.begin(), found.end(), is_again);
  const Unlike& first = relapsed == found.end() ? found[0] : *relapsed;
  verdict.words = cat("rank ", first.rank, " holds other values of `", names[first.tensor],
                      "` than rank ", first.than, " after step ", at_.step);
  if (found.size() > 1) {
    verdict.words +=
        cat(" (", found.size() - 1,
            found.size() == 2 ? " other tensor differs" : " other tensors differ", ", too)");
  }
  if (again) {
    verdict.words += (differ & blamed_) != 0
                         ? ", a step after differences were repaired"
                         : cat(", and ranks differed in each of the ", row_, " steps before");
    return verdict;
  }
  const std::uint64_t since = std::min(alike_ + 1, at_.step);
  const std::string steps = since == at_.step
                                ? cat("Step ", since, ", and its sums")
                                : cat("Steps ", since, " to ", at_.step, ", and their sums");
  verdict.doubt = cat(has_majority ? "" : "No values are those of most ranks. ", steps,
                      " on all ranks, may have been computed with wrong values");
  return verdict;
}

}  // namespace holdfast::replicas
