// What a stream does with memory that the kernel can not read or write.
#include "io/stream.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>

#include "os/lost_pages.h"

namespace holdfast::io {
namespace {

// The kernel meets a lost page first: it fails the call, and raises no signal.
TEST(Stream, NotesAPageThatTheKernelFindsLost) {
  for (const bool writes : {false, true}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    const os::Fd mine(ends[0]);
    const os::Fd other(ends[1]);
    ASSERT_EQ(::send(other.get(), "x", 1, 0), 1);
    os::Fd file(::memfd_create("page", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(file.get(), os::kPage), 0);
    auto* const page = static_cast<char*>(
        ::mmap(nullptr, os::kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
    page[0] = 7;
    os::LossList list;
    const std::span bytes(page, os::kPage);
    const auto guard =
        os::PageGuard::over_file(std::as_writable_bytes(bytes), std::move(file), 0, &list);
    ASSERT_TRUE(guard);
    os::lose_page(page);
    Stream stream(mine.get());
    const auto [outcome, count] = writes ? stream.write({page, os::kPage}) : stream.read(bytes);
    EXPECT_EQ(outcome, Stream::Outcome::kBroken);
    EXPECT_EQ(list.count, 1U);
    EXPECT_EQ(page[0], 0);
    ::munmap(page, os::kPage);
  }
}

}  // namespace
}  // namespace holdfast::io
