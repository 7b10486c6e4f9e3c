#include "os/lost_pages.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace holdfast::os {
namespace {

constexpr std::size_t kEntries = 4096;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // Of one loss: the largest huge page.

struct Entry {
  std::atomic<std::uintptr_t> begin = 0;  // 0: free.
  std::uintptr_t end = 0;
  int file = -1;  // -1: private memory.
  std::uint64_t offset = 0;
  LossList* list = nullptr;
};

// All that the handler uses. It is called in whichever thread has touched the page.
struct Table {
  Entry entries[kEntries];
  std::atomic<std::size_t> used = 0;  // Entries from here on were never taken.
  std::atomic<std::uint64_t> lost = 0;
  std::atomic<std::uint64_t> lost_privately = 0;
  std::atomic_flag repairing;
  LossList elsewhere;                      // Of private memory.
  pid_t owner = 0;                         // The process whose guards these are.
  struct sigaction former {};              // What SIGBUS did before.
  std::atomic<bool> has_given_up = false;  // `former` was put back.
};
Table table;

std::mutex changing;

// Whether the address can be read, without a signal if it can not: the kernel copies the signal set
// from there before it looks at the rest, which is nonsense.
bool is_readable(std::uintptr_t address) {
  constexpr int kNoSuchWay = 0x7fff;
  return ::syscall(SYS_rt_sigprocmask, kNoSuchWay, address, nullptr, 8) != 0 && errno != EFAULT;
}

// mmap(), past the C library: a signal handler should not call that. (The thread sanitizer takes
// its mmap() for a store to the whole page, in the midst of another thread's.)
bool map(void* address, std::uint64_t bytes, int access, int how, int file, off_t offset) {
  return ::syscall(SYS_mmap, address, bytes, access, how, file, offset) ==
         reinterpret_cast<std::intptr_t>(address);
}

const Entry* entry_at(std::uintptr_t address) {
  const std::size_t taken = table.used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < taken; ++i) {
    const std::uintptr_t begin = table.entries[i].begin.load(std::memory_order_acquire);
    if (begin != 0 && begin <= address && address < table.entries[i].end) return &table.entries[i];
  }
  return nullptr;
}

// A file's page stays lost until its hole is punched. Its memory is taken at once, while it can
// still be refused.
bool replace(const Entry& entry, std::uintptr_t page, std::uint64_t bytes) {
  void* address = reinterpret_cast<void*>(page);
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  if (entry.file < 0) {
    constexpr int kHow = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    return map(address, bytes, kAccess, kHow, -1, 0) && is_readable(page);
  }
  const auto at = static_cast<off_t>(entry.offset + (page - entry.begin.load()));
  const auto size = static_cast<off_t>(bytes);
  if (::fallocate(entry.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, size) != 0 ||
      ::fallocate(entry.file, FALLOC_FL_KEEP_SIZE, at, size) != 0) {
    return false;
  }
  constexpr int kHow = MAP_SHARED | MAP_FIXED;
  return map(address, bytes, kAccess, kHow, entry.file, at) && is_readable(page);
}

// Returns false if the page can not be replaced. Two threads may touch the same page.
bool repair(const Entry& entry, std::uintptr_t address, std::uint64_t bytes) {
  const std::uintptr_t begin = std::max(entry.begin.load(), address / bytes * bytes);
  bytes = std::min<std::uint64_t>(bytes - begin % bytes, entry.end - begin);
  while (table.repairing.test_and_set(std::memory_order_acquire)) {
  }
  bool done = is_readable(address);
  if (!done) {
    LossList& list = *entry.list;
    if (entry.file < 0) table.lost_privately.fetch_add(bytes / kPage, std::memory_order_release);
    // Whoever has cleared the list has read it before.
    const std::uint64_t n = std::atomic_ref(list.count).load(std::memory_order_acquire);
    if (n < LossList::kMost) list.losses[n] = {begin - entry.begin.load(), bytes};
    std::atomic_ref(list.count).store(n + 1, std::memory_order_release);
    // Whoever sees zeros sees this as well.
    table.lost.fetch_add(bytes / kPage, std::memory_order_release);
    done = replace(entry, begin, bytes);
  }
  table.repairing.clear(std::memory_order_release);
  return done;
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  const bool is_loss = info->si_code == BUS_MCEERR_AR || info->si_code == BUS_MCEERR_AO ||
                       info->si_code == BUS_ADRERR;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const Entry* entry = is_loss && ::getpid() == table.owner ? entry_at(address) : nullptr;
  std::uint64_t bytes = kPage;
  const bool has_size = info->si_code == BUS_MCEERR_AR || info->si_code == BUS_MCEERR_AO;
  if (has_size && info->si_addr_lsb > 12 && info->si_addr_lsb <= 30) {
    bytes = std::min(std::uint64_t{1} << info->si_addr_lsb, kMostBytes);
  }
  const bool done = entry != nullptr && repair(*entry, address, bytes);
  errno = saved;
  if (done) return;
  // The access is made again, and meets what would have met it without this handler. A handler that
  // was installed later may have put this one back, and may do so again: that must end.
  struct sigaction next = {};
  next.sa_handler = SIG_DFL;
  const bool has_met = table.has_given_up.exchange(true);
  ::sigaction(signal, has_met ? &next : &table.former, nullptr);
  if (!is_loss) ::raise(signal);
}

void handle() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void install() {
  if (table.owner == ::getpid()) return;
  const bool is_child = table.owner != 0;  // Forked: its guards are its parent's.
  if (is_child) {
    for (Entry& entry : table.entries) entry.begin.store(0);
    table.used.store(0);
    table.repairing.clear();  // The thread that may have set it is not here.
  }
  table.owner = ::getpid();
  if (is_child) return;
  ::sigaction(SIGBUS, nullptr, &table.former);
  handle();
}

// Returns the entry's place, from 1 on; 0: there is no room.
std::size_t enter(std::span<std::byte> pages, int file, std::uint64_t offset, LossList* list) {
  const std::scoped_lock lock(changing);
  install();
  const std::size_t taken = table.used.load();
  std::size_t at = 0;
  while (at < taken && table.entries[at].begin.load() != 0) ++at;
  if (at == kEntries || pages.empty()) return 0;
  Entry& entry = table.entries[at];
  const auto begin = reinterpret_cast<std::uintptr_t>(pages.data());
  entry.end = begin + pages.size();
  entry.file = file;
  entry.offset = offset;
  entry.list = list;
  entry.begin.store(begin, std::memory_order_release);
  if (at == taken) table.used.store(taken + 1, std::memory_order_release);
  return at + 1;
}

}  // namespace

PageGuard PageGuard::over_file(std::span<std::byte> pages, Fd file, std::uint64_t offset,
                               LossList* list) {
  PageGuard guard;
  if (!file) return guard;
  guard.entry_ = enter(pages, file.get(), offset, list);
  guard.file_ = std::move(file);
  return guard;
}

PageGuard PageGuard::over_memory(std::span<std::byte> memory) {
  PageGuard guard;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uint64_t skipped = (kPage - begin % kPage) % kPage;
  if (memory.size() < skipped + kPage) return guard;
  const std::uint64_t bytes = (memory.size() - skipped) / kPage * kPage;
  guard.entry_ = enter(memory.subspan(skipped, bytes), -1, 0, &table.elsewhere);
  return guard;
}

PageGuard::~PageGuard() {
  if (entry_ == 0) return;
  const std::scoped_lock lock(changing);
  if (table.owner == ::getpid())
    table.entries[entry_ - 1].begin.store(0, std::memory_order_release);
}

std::uint64_t pages_lost() {
  while (table.repairing.test(std::memory_order_acquire)) ::sched_yield();
  return table.lost.load(std::memory_order_acquire);
}

void touch(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kPage) {
    (void)*static_cast<const volatile std::byte*>(&bytes[at]);
  }
  if (!bytes.empty()) (void)*static_cast<const volatile std::byte*>(&bytes.back());
}

void keep_handler() {
  struct sigaction now = {};
  const bool is_ours = ::sigaction(SIGBUS, nullptr, &now) == 0 && now.sa_sigaction == on_bus_error;
  if (is_ours || table.owner != ::getpid()) return;
  const std::scoped_lock lock(changing);
  table.former = now;
  table.has_given_up = false;
  handle();
}

std::uint64_t private_pages_lost() {
  return table.lost_privately.load(std::memory_order_acquire);
}

void lose_page(void* address) {
  static const Fd empty(::memfd_create("empty", MFD_CLOEXEC));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(address) / kPage * kPage;
  constexpr int kHow = MAP_SHARED | MAP_FIXED;
  void* page = reinterpret_cast<void*>(begin);
  if (!map(page, kPage, PROT_READ | PROT_WRITE, kHow, empty.get(), 0)) std::abort();
}

}  // namespace holdfast::os
