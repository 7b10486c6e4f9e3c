// HostPart's reductions in memory that each rank has registered for itself: see
// Group::all_reduce().
//
// Every rank's request says where its numbers lie. All ranks see the same requests, so all decide
// alike: reduce in place, map new regions first, or copy.
#include <algorithm>
#include <cstring>

#include "collective/host_part.h"

namespace holdfast::collective {
namespace {

// The most regions of each rank that stay mapped; the oldest is dropped. Else a program that
// registers again and again would keep the memory of all its regions alive.
constexpr std::size_t kIntroducedMax = 256;

}  // namespace

bool HostPart::is_any_in_region() const {
  for (int k = 0; k < world_size(); ++k) {
    if (segment_->request(k, operations_).address.region != 0) return true;
  }
  return false;
}

const HostPart::Introduced* HostPart::introduced(int rank, RegionId id) const {
  for (const Introduced& i : introduced_[static_cast<std::size_t>(rank)]) {
    if (i.id == id) return &i;
  }
  return nullptr;
}

// Maps the regions of this operation that are new, and agrees on whether all ranks could map them.
Outcome HostPart::introduce() {
  std::vector<Introduced*> fresh;
  bool mapped = true;
  for (int k = 0; k < world_size(); ++k) {
    const RegionId id = addresses_[static_cast<std::size_t>(k)].region;
    if (introduced(k, id) != nullptr) continue;
    auto& theirs = introduced_[static_cast<std::size_t>(k)];
    if (theirs.size() == kIntroducedMax) theirs.erase(theirs.begin());
    theirs.push_back({.id = id, .usable = false, .mapping = nullptr});
    fresh.push_back(&theirs.back());  // Stays valid: at most one region per rank is added.
    if (k == rank()) continue;
    auto mapping = own_regions_->open(id);
    if (mapping) theirs.back().mapping = *std::move(mapping);
    mapped = mapped && theirs.back().mapping != nullptr;
  }
  const Outcome o = begin({.kind = Kind::kIntroduction, .address = {.region = mapped ? 1U : 0U}});
  if (o != Outcome::kDone) return o;
  for (int k = 0; k < world_size(); ++k) {
    mapped = mapped && segment_->request(k, operations_).address.region == 1;
  }
  for (Introduced* region : fresh) region->usable = mapped;
  return Outcome::kDone;
}

Outcome HostPart::all_reduce_in_regions(const Numbers& numbers, const std::byte* from, Op op,
                                        RegionAddress address) {
  if (from != numbers.data && numbers.bytes != 0) {
    std::memcpy(numbers.data, from, numbers.bytes);
  }
  Request request = reduction_of(numbers, op);
  request.address = address;
  if (const Outcome o = begin(request); o != Outcome::kDone) return o;
  if (world_size() == 1) return reduce_own({numbers, numbers.data, op});
  bool in_regions = true;
  bool known = true;
  for (int k = 0; k < world_size(); ++k) {
    RegionAddress& theirs = addresses_[static_cast<std::size_t>(k)];
    theirs = segment_->request(k, operations_).address;
    in_regions = in_regions && theirs.region != 0;
    known = known && in_regions && introduced(k, theirs.region) != nullptr;
  }
  if (in_regions && !known) {
    if (const Outcome o = introduce(); o != Outcome::kDone) return o;
  }
  for (int k = 0; in_regions && k < world_size(); ++k) {
    const RegionAddress& theirs = addresses_[static_cast<std::size_t>(k)];
    const Introduced* region = introduced(k, theirs.region);
    in_regions = region->usable;
    if (in_regions) {
      rows_[static_cast<std::size_t>(k)] =
          k == rank() ? numbers.data : region->mapping->bytes().data() + theirs.offset;
    }
  }
  if (!in_regions) return reduce_by_windows(numbers, numbers.data, op, true);
  return reduce_everywhere(numbers, op);
}

}  // namespace holdfast::collective
