#include "collective/request.h"

#include <iterator>
#include <vector>

#include "base/text.h"

namespace holdfast::collective {
namespace {

std::string describe_kind(const Request& r) {
  const std::string amount =
      r.op == Op::kSum ? cat(r.bytes, " bytes of ", name_of(r.element))
                       : cat(r.bytes, " bytes (", name_of(r.op), " of ", name_of(r.element), ")");
  switch (r.kind) {
    case Kind::kAllReduce:
      return cat("an all-reduce of ", amount, " at byte ", r.offset);
    case Kind::kAnywhereAllReduce:
      return cat("an all-reduce of ", amount, " anywhere in memory");
    case Kind::kBroadcast:
      return cat("a broadcast of ", r.bytes, " bytes from rank ", r.root);
    case Kind::kAllGather:
      return cat("an all-gather of ", r.bytes, " bytes from each");
    case Kind::kBarrier:
      return "a barrier";
    case Kind::kIntroduction:
      return "an introduction of registered memory";
  }
  return "something unknown";
}

const char* describe_fault(Fault fault) {
  constexpr const char* kWords[] = {
      "",
      ", which can not be reduced so or lies where nobody reaches it",
      ", which is no rank of the group",
      " into memory of another size than that of all ranks together",
      ", which finds no room",
  };
  const auto index = static_cast<std::size_t>(fault);
  return index < std::size(kWords) ? kWords[index] : "";
}

}  // namespace

Request reduction_of(const Numbers& numbers, Op op) {
  return {.bytes = numbers.bytes,
          .kind = Kind::kAnywhereAllReduce,
          .element = numbers.element,
          .op = op,
          .fault = check(numbers, op) ? Fault::kNone : Fault::kUnfit};
}

std::string describe(const Request& request) {
  return cat(describe_kind(request), describe_fault(request.fault), " (operation ",
             request.sequence, ")");
}

std::string name_ranks(std::span<const int> ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) append(out, cat(i == 0 ? "" : ", ", ranks[i]));
  return out;
}

std::string describe_mismatch(std::span<const Request> by_rank, const std::string& directory) {
  for (std::size_t k = 0; k < by_rank.size(); ++k) {
    if (by_rank[k].fault != Fault::kNoRoom) continue;
    return cat("no room in ", directory, ": rank ", k, " asked for ", describe(by_rank[k]),
               "; make room there");
  }
  std::string out;
  std::vector<bool> told(by_rank.size());
  for (std::size_t first = 0; first < by_rank.size(); ++first) {
    if (told[first]) continue;
    std::vector<int> same;
    for (std::size_t k = first; k < by_rank.size(); ++k) {
      if (!(by_rank[k] == by_rank[first])) continue;
      told[k] = true;
      same.push_back(static_cast<int>(k));
    }
    append(out, cat(out.empty() ? "" : ", ", name_ranks(same),
                    out.empty() ? " asked for " : " for ", describe(by_rank[first])));
  }
  return out + "; all ranks must call the same operations in the same order";
}

}  // namespace holdfast::collective
