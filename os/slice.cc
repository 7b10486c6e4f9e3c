#include "os/slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/text.h"
#include "os/process.h"

namespace holdfast::os {
namespace {

constexpr std::uint64_t kShort = 100'000;  // ns; the shortest that the kernel gives.
constexpr std::uint64_t kUsual = 0;

// The kernel's struct sched_attr in its first version, which all kernels accept. Its own header
// (linux/sched/types.h) can not be included beside <sched.h> everywhere.
struct Attributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime;  // SCHED_OTHER: the slice, since 6.12.
  std::uint64_t deadline;
  std::uint64_t period;
};
static_assert(sizeof(Attributes) == 48);

bool read(pid_t thread, Attributes& attributes) {
  return ::syscall(SYS_sched_getattr, thread, &attributes, sizeof(attributes), 0) == 0 &&
         attributes.policy == SCHED_OTHER;
}

// All else stays as it was read a moment before, above all the nice value. A change in between
// would be undone, but nobody changes threads like these.
bool write(pid_t thread, Attributes attributes, std::uint64_t slice) {
  attributes.size = sizeof(attributes);
  attributes.runtime = slice;
  return ::syscall(SYS_sched_setattr, thread, &attributes, 0) == 0;
}

}  // namespace

bool take_short_slice(pid_t thread) {
  Attributes attributes{};
  return read(thread, attributes) && write(thread, attributes, kShort) && has_short_slice(thread);
}

void take_usual_slice(pid_t thread) {
  Attributes attributes{};
  if (!read(thread, attributes) || attributes.runtime != kShort) return;
  (void)write(thread, attributes, kUsual);
}

void take_short_slice_of_all(pid_t process) {
  for (const pid_t thread : numbers_in(cat("/proc/", process, "/task"))) {
    (void)take_short_slice(thread);
  }
}

void take_usual_slice_of_others(pid_t but) {
  for (const pid_t thread : numbers_in("/proc/self/task")) {
    if (thread != this_thread() && thread != but) take_usual_slice(thread);
  }
}

bool has_short_slice(pid_t thread) {
  Attributes attributes{};
  return read(thread, attributes) && attributes.runtime == kShort;
}

}  // namespace holdfast::os
