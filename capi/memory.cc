// The functions of c.h that guard memory of the program.
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "capi/error.h"
#include "capi/handles.h"
#include "os/lost_pages.h"

using namespace holdfast;

namespace {

struct Guards {
  std::mutex mutex;
  std::map<std::uint64_t, os::PageGuard> all;
  std::uint64_t newest = 0;
};

Guards& guards() {
  static auto* const kept = new Guards;  // Threads may go on after exit() has begun.
  return *kept;
}

}  // namespace

std::uint64_t hf_guard(void* memory, std::uint64_t bytes) try {
  auto guard = os::PageGuard::over_memory({static_cast<std::byte*>(memory), bytes});
  if (!guard) return 0;
  const std::scoped_lock lock(guards().mutex);
  guards().all.emplace(++guards().newest, std::move(guard));
  return guards().newest;
} catch (...) {
  (void)capi::report_caught();
  return 0;
}

void hf_unguard(std::uint64_t guard) {
  const std::scoped_lock lock(guards().mutex);
  guards().all.erase(guard);
}

void hf_uses_committed(hf_session* s) {
  s->session->uses_committed();
}

std::uint64_t hf_pages_lost(void) {
  return os::pages_lost();
}

std::uint64_t hf_memory_lost(void) {
  return os::private_pages_lost();
}
