#include "os/lost_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "os/testing.h"

namespace holdfast::os {
namespace {

constexpr std::size_t kPages = 16;

// Some pages of a file in memory, as an arena is.
struct Pages {
  explicit Pages(std::uint64_t skipped = 0) : offset(skipped) {
    if (::ftruncate(file.get(), static_cast<off_t>(skipped + kPages * kPage)) != 0) std::abort();
    void* at = ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(),
                      static_cast<off_t>(skipped));
    bytes = {static_cast<std::byte*>(at), kPages * kPage};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251 + 1);
  }
  ~Pages() { ::munmap(bytes.data(), bytes.size()); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  [[nodiscard]] std::byte& page(std::size_t i) const { return bytes[i * kPage]; }
  void lose(std::size_t i) const { lose_page(&page(i)); }
  [[nodiscard]] PageGuard guard() {
    return PageGuard::over_file(bytes, Fd(::dup(file.get())), offset, &list);
  }
  [[nodiscard]] bool is_zero(std::size_t i) const {
    return std::all_of(&page(i), &page(i) + kPage, [](std::byte b) { return b == std::byte{}; });
  }

  Fd file{::memfd_create("pages", MFD_CLOEXEC)};
  std::uint64_t offset;
  std::span<std::byte> bytes;
  LossList list;
};

// Whether a forked process comes to the end of `body`. (A sanitizer reports a signal, and exits.)
template <class Body>
bool survives(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void read(const std::byte& one) {
  (void)*static_cast<const volatile std::byte*>(&one);
}

TEST(LostPages, AreListedAndZeroAndTheOthersAreWhole) {
  Pages pages(3 * kPage);
  const PageGuard guard = pages.guard();
  ASSERT_TRUE(guard);
  const std::uint64_t before = pages_lost();
  const std::vector<std::byte> whole(pages.bytes.begin(), pages.bytes.end());
  for (const std::size_t i : {0U, 5U, 15U}) pages.lose(i);
  std::vector<std::byte> copy(pages.bytes.size());
  std::memcpy(copy.data(), pages.bytes.data(), copy.size());
  EXPECT_EQ(pages_lost() - before, 3U);
  ASSERT_EQ(pages.list.count, 3U);
  EXPECT_EQ(pages.list.all()[1].offset, 5 * kPage);
  EXPECT_EQ(pages.list.all()[1].bytes, kPage);
  for (std::size_t i = 0; i < kPages; ++i) {
    const bool lost = i == 0 || i == 5 || i == 15;
    EXPECT_EQ(pages.is_zero(i), lost) << i;
    if (!lost) {
      EXPECT_EQ(std::memcmp(&pages.page(i), &whole[i * kPage], kPage), 0) << i;
    }
  }
}

// A store to a lost page goes to the page that takes its place, which all who map the file share.
TEST(LostPages, AreReplacedInTheFile) {
  const Pages pages;
  Pages& own = const_cast<Pages&>(pages);
  const PageGuard guard = own.guard();
  pages.lose(7);
  (&pages.page(7))[100] = std::byte{42};
  std::byte there{};
  ASSERT_EQ(::pread(pages.file.get(), &there, 1, 7 * kPage + 100), 1);
  EXPECT_EQ(there, std::byte{42});
}

TEST(LostPages, OfTwoThreadsThatStoreBothStoresStay) {
  Pages pages;
  const PageGuard guard = pages.guard();
  for (int round = 0; round < 300; ++round) {
    pages.lose(2);
    pages.list.count = 0;
    std::thread other([&] { (&pages.page(2))[1] = std::byte{1}; });
    (&pages.page(2))[2] = std::byte{2};
    other.join();
    ASSERT_EQ((&pages.page(2))[1], std::byte{1}) << round;
    ASSERT_EQ((&pages.page(2))[2], std::byte{2}) << round;
    ASSERT_EQ(pages.list.count, 1U) << round;
  }
}

TEST(LostPages, BeyondTheListAreCounted) {
  LossList list;
  for (list.count = 0; list.count <= LossList::kMost; ++list.count) EXPECT_TRUE(list.is_whole());
  EXPECT_FALSE(list.is_whole());
  EXPECT_EQ(list.all().size(), LossList::kMost);
}

TEST(LostPages, OfPrivateMemoryAreCountedWithinWholePagesOnly) {
  void* at = ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const std::span<std::byte> all(static_cast<std::byte*>(at), 4 * kPage);
  EXPECT_FALSE(PageGuard::over_memory(all.subspan(100, kPage)));
  const PageGuard guard = PageGuard::over_memory(all.subspan(100, 3 * kPage));
  ASSERT_TRUE(guard);
  const std::uint64_t before = pages_lost();
  lose_page(&all[kPage]);
  EXPECT_EQ(all[kPage + 5], std::byte{});
  EXPECT_EQ(pages_lost() - before, 1U);
  EXPECT_FALSE(survives([&] {  // The first page is not guarded: other things lie in it.
    lose_page(&all[0]);
    read(all[5]);
  }));
  ::munmap(at, 4 * kPage);
}

TEST(LostPages, EndTheProcessWhereNobodyGuardsThem) {
  Pages pages;
  { const PageGuard guard = pages.guard(); }
  EXPECT_FALSE(survives([&] {
    pages.lose(1);
    read(pages.page(1));
  }));
}

// The parent would not learn of what its child has put in place of the page.
TEST(LostPages, EndAForkedChild) {
  Pages pages;
  const PageGuard guard = pages.guard();
  pages.lose(1);
  EXPECT_FALSE(survives([&] { read(pages.page(1)); }));
  EXPECT_EQ(pages.list.count, 0U);
  EXPECT_EQ(pages.page(1), std::byte{});
  EXPECT_EQ(pages.list.count, 1U);
}

// The kernel tells of a larger page, and perhaps before anybody has touched it.
TEST(LostPages, AreTakenAtTheirSizeAndNotTwice) {
  Pages pages;
  const PageGuard guard = pages.guard();
  const auto tell = [&](std::size_t i, int code, short bits) {
    siginfo_t info{};
    info.si_signo = SIGBUS;
    info.si_code = code;
    info.si_addr = &pages.page(i) + 8;
    info.si_addr_lsb = bits;
    ASSERT_EQ(::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), SIGBUS, &info), 0);
  };
  pages.lose(4);
  tell(4, BUS_MCEERR_AO, 12);
  EXPECT_EQ(pages.list.count, 1U);
  EXPECT_TRUE(pages.is_zero(4));
  pages.page(4) = std::byte{9};
  tell(4, BUS_MCEERR_AO, 12);  // It is whole by now.
  EXPECT_EQ(pages.list.count, 1U);
  EXPECT_EQ(pages.page(4), std::byte{9});
  pages.lose(9);
  tell(9, BUS_MCEERR_AR, 13);  // Two pages, of which one can still be read.
  ASSERT_EQ(pages.list.count, 2U);
  EXPECT_EQ(pages.list.all()[1].bytes, 2 * kPage);
  EXPECT_TRUE(pages.is_zero(9));
}

// A handler that was installed later may put the former one back, as Python's faulthandler does.
struct sigaction put_back {};
void hand_back(int signal) {
  ::sigaction(signal, &put_back, nullptr);
}

TEST(LostPages, AreHandledThoughALibraryHasInstalledAnotherHandler) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not deliver signals in forked processes at once";
#endif
  Pages pages;
  const Pages unguarded;
  const auto guarded = [&](bool and_others) {
    const PageGuard guard = pages.guard();
    struct sigaction other {};
    other.sa_handler = hand_back;
    ::sigaction(SIGBUS, &other, &put_back);
    keep_handler();
    keep_handler();
    pages.lose(3);
    if (pages.page(3) != std::byte{} || pages.list.count != 1) ::_exit(1);
    if (!and_others) return;
    unguarded.lose(1);
    read(unguarded.page(1));
  };
  EXPECT_TRUE(survives([&] { guarded(false); }));
  EXPECT_FALSE(survives([&] { guarded(true); }));
}

TEST(LostPages, LeaveOtherBusErrorsToWhoeverHandledThemBefore) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not deliver signals in forked processes at once";
#endif
  Pages pages;
  const PageGuard guard = pages.guard();
  EXPECT_TRUE(survives([] {}));
  EXPECT_FALSE(survives([] { ::raise(SIGBUS); }));
}

}  // namespace
}  // namespace holdfast::os
