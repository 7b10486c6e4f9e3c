#include "os/lifeline.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "base/assert.h"
#include "base/text.h"
#include "os/robust_mutex.h"
#include "os/shared_file.h"

namespace holdfast::os {
namespace {

constexpr std::uint64_t kMagic = 0x21656e696c66694c;  // "Lifline!" in memory
constexpr std::uint64_t kBytes = 4096;
constexpr Duration kLongestWait = std::chrono::milliseconds(200);

enum Phase : std::uint32_t { kUnheld, kHeld, kReleased };
enum End : std::uint32_t { kNotNoted, kWell, kBadly };

struct Page {
  std::uint64_t magic;
  std::uint32_t phase;    // A futex: watchers wait here until it leaves kUnheld.
  std::int32_t holder;    // The holder's pid; written before `phase` becomes kHeld.
  std::uint32_t end;      // An End: of the job, as the holder has noted it.
  std::uint32_t ready;    // 1: the holder, a spare, is ready.
  pthread_mutex_t alive;  // Robust; locked before `phase` becomes kHeld.
  Board board;            // Its version: the last step that the holder has noted.
};
static_assert(sizeof(Page) <= kBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<Doing>::is_always_lock_free);

std::uint32_t phase_of(Page& page) {
  return std::atomic_ref(page.phase).load(std::memory_order_acquire);
}

void set_phase(Page& page, Phase phase) {
  std::atomic_ref(page.phase).store(phase, std::memory_order_release);
  syscall(SYS_futex, &page.phase, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void await_holder(Page& page) {
  const timespec limit{0, kLongestWait.count()};
  syscall(SYS_futex, &page.phase, FUTEX_WAIT, kUnheld, &limit, nullptr, 0);
}

// Makes an unheld page, which does not have its name yet.
Result<Mapping> make_page(const std::string& path) {
  Result<Mapping> mapping = make_file(path, kBytes);
  if (!mapping) return mapping;
  Page& page = *mapping->as<Page>(0);
  init_robust(page.alive);
  page.board.version = kNoVersion;
  page.magic = kMagic;
  return mapping;
}

// The lifeline at `path`; an error if there is none.
Result<Mapping> find_page(const std::string& path) {
  const Result<Found> found = find_file(path, Access::kWrite);
  if (!found) return found.error();
  if (!found->file) return Error{Blame::kWorld, cat("There is no lifeline ", path, ".")};
  const Error other{Blame::kWorld, cat(path, " is not a lifeline; remove it.")};
  if (found->bytes != kBytes) return other;
  Result<Mapping> mapping = map_file(*found, Access::kWrite, path);
  if (mapping && mapping->as<Page>(0)->magic != kMagic) return other;
  return mapping;
}

}  // namespace

Status prepare_lifeline(const std::string& path) {
  const Result<Mapping> made = make_page(path);
  if (!made) return made.error();
  return give_name(path);
}

Result<Lifeline> Lifeline::hold(const std::string& path) {
  if (Result<Mapping> prepared = find_page(path); prepared) {
    Page& page = *prepared->as<Page>(0);
    const Locked locked = lock_robust(page.alive, Duration(0));
    if (locked == Locked::kFree || locked == Locked::kOrphaned) {
      if (phase_of(page) == kUnheld) {
        page.holder = ::getpid();
        set_phase(page, kHeld);
        return Lifeline(std::move(*prepared));
      }
      unlock_robust(page.alive);
    }
  }
  Result<Mapping> fresh = make_page(path);
  if (!fresh) return fresh.error();
  Page& page = *fresh->as<Page>(0);
  HF_ASSERT(lock_robust(page.alive, kLongestWait) == Locked::kFree);
  page.holder = ::getpid();
  set_phase(page, kHeld);
  Lifeline lifeline(std::move(*fresh));
  if (Status named = give_name(path); !named) return named.error();
  return lifeline;
}

Lifeline::~Lifeline() {
  if (!page_ || process_ != ::getpid()) return;  // A forked child holds nothing.
  Page& page = *page_.as<Page>(0);
  set_phase(page, kReleased);
  if (holder_ == std::this_thread::get_id()) {
    unlock_robust(page.alive);
  } else {  // The mutex stays in that thread's list, so its page must stay mapped.
    page_.keep_mapped();
  }
}

void Lifeline::note(Version version) const {
  page_.as<Page>(0)->board.version.store(version, std::memory_order_relaxed);
}

void Lifeline::note_ready() const {
  std::atomic_ref(page_.as<Page>(0)->ready).store(1, std::memory_order_relaxed);
}

bool lifeline_ready(const std::string& path) {
  const Result<Mapping> mapping = find_page(path);
  return mapping && std::atomic_ref(mapping->as<Page>(0)->ready).load(std::memory_order_relaxed);
}

void Lifeline::note_end(bool well) const {
  std::atomic_ref(page_.as<Page>(0)->end).store(well ? kWell : kBadly, std::memory_order_relaxed);
}

std::optional<bool> lifeline_end(const std::string& path) {
  const Result<Mapping> mapping = find_page(path);
  if (!mapping) return std::nullopt;
  const auto end = std::atomic_ref(mapping->as<Page>(0)->end).load(std::memory_order_relaxed);
  return end == kNotNoted ? std::nullopt : std::optional(end == kWell);
}

Version lifeline_version(const std::string& path) {
  const Result<Mapping> mapping = find_page(path);
  if (!mapping) return kNoVersion;
  return mapping->as<Page>(0)->board.version.load(std::memory_order_relaxed);
}

std::shared_ptr<Board> lifeline_board(const std::string& path) {
  Result<Mapping> mapping = find_page(path);
  if (!mapping) return std::make_shared<Board>();
  const auto page = std::make_shared<Mapping>(std::move(*mapping));
  return {page, &page->as<Page>(0)->board};
}

Whereabouts whereabouts_on(const Board& board) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  return {.generation = board.generation.load(kRelaxed),
          .operations = board.operations.load(kRelaxed),
          .version = board.version.load(kRelaxed),
          .steps = board.steps.load(kRelaxed),
          .doing = board.doing.load(kRelaxed),
          .team_operations = board.team_operations.load(kRelaxed),
          .waits_for_team = board.team_waits.load(kRelaxed) != 0};
}

std::int32_t lifeline_holder(const std::string& path) {
  const Result<Mapping> mapping = find_page(path);
  if (!mapping || phase_of(*mapping->as<Page>(0)) == kUnheld) return 0;
  return mapping->as<Page>(0)->holder;
}

Result<Ending> wait_for_death(const std::string& path, const std::atomic<bool>& cancel) {
  const Result<Mapping> mapping = find_page(path);
  if (!mapping) return mapping.error();
  Page& page = *mapping->as<Page>(0);
  while (!cancel.load(std::memory_order_relaxed)) {
    const std::uint32_t phase = phase_of(page);
    if (phase == kReleased) return Ending::kReleased;
    if (phase == kUnheld) {
      await_holder(page);
      continue;
    }
    const Locked locked = lock_robust(page.alive, kLongestWait);
    if (locked == Locked::kNot) continue;
    if (locked == Locked::kUnusable) {
      return Error{Blame::kWorld, cat("The lifeline ", path, " is corrupt.")};
    }
    // kFree may mean a death, too: another watcher may have been first.
    const bool released = phase_of(page) == kReleased;
    unlock_robust(page.alive);
    return released ? Ending::kReleased : Ending::kDied;
  }
  return Ending::kCancelled;
}

}  // namespace holdfast::os
