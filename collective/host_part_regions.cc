// Member's sums in memory that each rank has registered for itself: see Group::all_reduce_staged().
//
// Every rank shows with its request where its numbers lie. All ranks see the same requests, so they
// come to the same: sum in place, map what is new first, or copy.
#include <algorithm>
#include <cstring>

#include "collective/host_part.h"

namespace holdfast::collective {
namespace {

// Of one rank, the last; a program that registers again and again would keep all alive.
constexpr std::size_t kIntroducedMax = 256;

}  // namespace

bool Member::is_any_placed() const {
  for (int k = 0; k < world_size(); ++k) {
    if (segment_->request(k, operations_).place.region != 0) return true;
  }
  return false;
}

const Member::Introduced* Member::introduced(int rank, RegionId id) const {
  for (const Introduced& i : introduced_[static_cast<std::size_t>(rank)]) {
    if (i.id == id) return &i;
  }
  return nullptr;
}

// Maps the regions that were not named before, and finds out whether all ranks could.
Outcome Member::introduce() {
  std::vector<Introduced*> fresh;
  bool mapped = true;
  for (int k = 0; k < world_size(); ++k) {
    const RegionId id = places_[static_cast<std::size_t>(k)].region;
    if (introduced(k, id) != nullptr) continue;
    auto& theirs = introduced_[static_cast<std::size_t>(k)];
    if (theirs.size() == kIntroducedMax) theirs.erase(theirs.begin());
    theirs.push_back({.id = id, .usable = false, .mapping = nullptr});
    fresh.push_back(&theirs.back());  // One of each rank at most.
    if (k == rank()) continue;
    auto mapping = own_regions_->open(id);
    if (mapping) theirs.back().mapping = *std::move(mapping);
    mapped = mapped && theirs.back().mapping != nullptr;
  }
  const Outcome o = begin({.kind = Kind::kIntroduction, .place = {.region = mapped ? 1U : 0U}});
  if (o != Outcome::kDone) return o;
  for (int k = 0; k < world_size(); ++k) {
    mapped = mapped && segment_->request(k, operations_).place.region == 1;
  }
  for (Introduced* region : fresh) region->usable = mapped;
  return Outcome::kDone;
}

Outcome Member::all_reduce_placed(const Numbers& numbers, const std::byte* from, Op op,
                                  Place place) {
  if (from != numbers.data && numbers.bytes != 0) {
    std::memcpy(numbers.data, from, numbers.bytes);
  }
  const Outcome begun = begin({.bytes = numbers.bytes,
                               .kind = Kind::kStagedAllReduce,
                               .element = numbers.element,
                               .op = op,
                               .fault = check(numbers, op) ? Fault::kNone : Fault::kUnfit,
                               .place = place});
  if (begun != Outcome::kDone) return begun;
  if (world_size() == 1) return reduce_own({numbers, numbers.data, op});
  bool placed = true;
  bool known = true;
  for (int k = 0; k < world_size(); ++k) {
    Place& theirs = places_[static_cast<std::size_t>(k)];
    theirs = segment_->request(k, operations_).place;
    placed = placed && theirs.region != 0;
    known = known && placed && introduced(k, theirs.region) != nullptr;
  }
  if (placed && !known) {
    if (const Outcome o = introduce(); o != Outcome::kDone) return o;
  }
  for (int k = 0; placed && k < world_size(); ++k) {
    const Place& theirs = places_[static_cast<std::size_t>(k)];
    const Introduced* region = introduced(k, theirs.region);
    placed = region->usable;
    if (placed) {
      rows_[static_cast<std::size_t>(k)] =
          k == rank() ? numbers.data : region->mapping->bytes().data() + theirs.offset;
    }
  }
  if (!placed) return stage(numbers, numbers.data, op, true);
  return sum_in_place_of_all(numbers, op);
}

}  // namespace holdfast::collective
