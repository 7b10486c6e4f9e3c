// The functions of c.h that compare what all ranks hold alike.
#include "runtime/worker/replicas.h"

#include <utility>
#include <vector>

#include "base/text.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "runtime/worker/arena_store.h"

using namespace holdfast;
using capi::report;
using capi::report_caught;
using capi::user_error;

hf_status hf_replicas(hf_session* s, const hf_replica* given, uint64_t count, uint64_t step) try {
  using Phase = hf_session::Phase;
  if (s->phase != Phase::kJoined && s->phase != Phase::kInStep) {
    return report(user_error("hf_replicas() comes after hf_join() and before hf_end()"));
  }
  if (count > 0 && given == nullptr) return report(user_error("the replicas are missing"));
  arena::Arena& arena = runtime::arena_of(*s->session);
  const std::uint64_t all = arena.layout().private_bytes;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  runtime::Replicas::Table table{.step = step};
  if (s->flip) {  // It may be revoked before the table is given anew.
    table.flip = [s](std::size_t replica, std::uint64_t byte, unsigned bit) {
      return s->flip && s->flip(replica, byte, bit);
    };
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto [name, offset, bytes] = given[i];
    if (name == nullptr || offset > all || bytes > all - offset) {
      return report(user_error(cat("replica ", i, ", ", bytes, " private bytes from ", offset,
                                   " on, has no name or is not within ", all)));
    }
    table.names.emplace_back(name);
    places.emplace_back(offset, bytes);
  }
  table.bytes_of = [&arena, places = std::move(places)](std::size_t i) {
    return arena.private_bytes(arena.version()).subspan(places[i].first, places[i].second);
  };
  s->replicas->hold(std::move(table));
  return HF_OK;
} catch (...) {
  return report_caught();
}

void hf_flip_by(hf_session* s, hf_flip flip, void* context) try {
  s->flip = nullptr;
  if (flip == nullptr) return;
  s->flip = [flip, context](std::size_t replica, std::uint64_t byte, unsigned bit) {
    return flip(context, replica, byte, static_cast<std::uint8_t>(bit)) != 0;
  };
} catch (...) {
  (void)report_caught();
}

int hf_comparison_due(hf_session* s, int at_end) {
  return s->replicas->is_due(at_end != 0) ? 1 : 0;
}

hf_status hf_compare_replicas(hf_session* s, uint8_t* repaired) try {
  using Phase = hf_session::Phase;
  if (repaired == nullptr)
    return report(user_error("hf_compare_replicas() needs its answer's place"));
  if ((s->phase != Phase::kInStep && s->phase != Phase::kJoined) || s->reduced) {
    return report(user_error(
        "hf_compare_replicas() comes right after hf_begin_step(), or between two steps"));
  }
  if (const Status done = s->replicas->compare(); !done) return report(done);
  for (const std::size_t i : s->replicas->repaired()) repaired[i] = 1;
  return HF_OK;
} catch (...) {
  return report_caught();
}
