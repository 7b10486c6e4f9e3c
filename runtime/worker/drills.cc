#include "runtime/worker/drills.h"

#include <csignal>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/prng.h"
#include "base/text.h"
#include "io/loop.h"
#include "os/lost_pages.h"

namespace holdfast::runtime {
namespace {

using wire::DrillKind;

constexpr std::size_t kMostWaiting = 16;
constexpr Duration kForEver = std::chrono::hours(24 * 365);

void say(const std::string& what) {
  std::fprintf(stderr, "holdfast: drill: %s\n", what.c_str());
}

Duration time_of(const wire::Drill& drill) {
  return drill.for_ms == 0 ? kForEver : std::chrono::milliseconds(drill.for_ms);
}

void spin(Duration time) {
  const Instant end = io::Loop::now() + time;
  while (io::Loop::now() < end) {
  }
}

// Of what a step is made from: gradients, or what all ranks hold alike of the committed version.
void lose_page(std::uint64_t seed, StateStore& store) {
  std::vector<std::byte*> pages;
  for (const std::span<std::byte> bytes : store.replaceable()) {
    const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
    const std::uintptr_t skip = (os::kPage - first % os::kPage) % os::kPage;
    for (std::size_t at = skip; at + os::kPage <= bytes.size(); at += os::kPage) {
      pages.push_back(bytes.data() + at);
    }
  }
  if (pages.empty()) return say("there is no whole page that another rank could give back");
  std::byte* page = pages[seed % pages.size()];
  os::lose_page(page);
  (void)*static_cast<volatile std::byte*>(page);
  say("a page of memory is lost");
}

}  // namespace

void Drills::order(const wire::Drill& drill) {
  const std::lock_guard lock(mutex_);
  if (drill.kind == DrillKind::kSlow) {  // The new one takes the place of a former one.
    std::erase_if(drills_, [](const wire::Drill& d) { return d.kind == DrillKind::kSlow; });
  }
  if (drills_.size() == kMostWaiting) return say("too many wait here: this one is left out");
  drills_.push_back(drill);
  waiting_.store(drills_.size(), std::memory_order_relaxed);
}

void Drills::may_flip(std::vector<std::string> names,
                      std::function<std::span<std::byte>(std::size_t)> bytes_of, Flip flip) {
  names_ = std::move(names);
  bytes_of_ = std::move(bytes_of);
  flip_ = std::move(flip);
}

void Drills::flip(std::uint64_t seed, Version version) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < names_.size(); ++i) bytes += bytes_of_(i).size();
  if (bytes == 0) return say("this rank holds nothing that is compared with the others");
  std::uint64_t at = seed % bytes;
  std::size_t which = 0;
  while (at >= bytes_of_(which).size()) at -= bytes_of_(which++).size();
  const auto bit = static_cast<unsigned>(mix(seed) % 8);
  const std::string what = cat("bit ", bit, " of byte ", at, " of `", names_[which], '`');
  if (flip_) {
    const bool is_flipped = flip_(which, at, bit);
    return say(cat(what, is_flipped ? " is flipped" : " could not be flipped",
                   " in the program's memory, after version ", version));
  }
  bytes_of_(which)[at] ^= std::byte{1} << bit;
  say(cat(what, " is flipped in version ", version));
}

void Drills::cut() const {
  const std::size_t links = cut_links_ ? cut_links_() : 0;
  say(links == 0 ? "this process has no links to other hosts now"
                 : cat(counted(static_cast<std::int64_t>(links), "link"), " to other hosts ",
                       links == 1 ? "is" : "are", " cut"));
}

void Drills::come(Doing phase, StateStore& store) {
  const Version version = store.holding().version;
  const Version step = version == kNoVersion ? 0 : version + 1;  // That is under way.
  std::vector<wire::Drill> due;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(drills_, [&](const wire::Drill& drill) {
      if (drill.phase != phase || step < drill.at_step) return false;
      due.push_back(drill);
      return drill.kind != DrillKind::kSlow;
    });
    waiting_.store(drills_.size(), std::memory_order_relaxed);
  }
  for (const wire::Drill& drill : due) {
    switch (drill.kind) {
      case DrillKind::kKill:
        say("this process is killed");
        (void)::raise(SIGKILL);
        break;
      case DrillKind::kStop:
        say("this process is stopped");
        (void)::raise(SIGSTOP);
        break;
      case DrillKind::kHang:
        say("this process hangs");
        std::this_thread::sleep_for(time_of(drill));
        break;
      case DrillKind::kSpin:
        say("this process spins");
        spin(time_of(drill));
        break;
      case DrillKind::kSlow:  // A face may come to a phase twice in a step.
        if (std::exchange(slowed_, step) != step) std::this_thread::sleep_for(time_of(drill));
        break;
      case DrillKind::kPage:
        lose_page(drill.seed, store);
        break;
      case DrillKind::kFlip:
        flip(drill.seed, version);
        break;
      case DrillKind::kCut:
        cut();
        break;
    }
  }
}

}  // namespace holdfast::runtime
