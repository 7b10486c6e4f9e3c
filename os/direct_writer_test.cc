// Large files past the page cache: any length comes as it was written, also where a file system
// refuses that.
#include "os/direct_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "os/fd.h"
#include "os/files.h"
#include "os/mapping.h"

namespace holdfast::os {
namespace {

constexpr std::size_t kMost = 6 * DirectWriter::kWindow + 3 * kPage;

Fd file_in(const char* folder) {
  return Fd(::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}

// `bytes` bytes that differ from page to page, beginning at a page.
std::span<std::byte> made_of(std::size_t bytes) {
  static std::byte* const memory = [] {
    void* const got =
        ::mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* const all = static_cast<std::byte*>(got);
    for (std::size_t i = 0; i < kMost; i += 8) {
      const std::size_t value = i * 0x9e3779b97f4a7c15U;
      std::memcpy(all + i, &value, sizeof value);
    }
    return all;
  }();
  return {memory, bytes};
}

void write(const Fd& file, std::span<const std::byte> bytes) {
  DirectWriter writer(file.get());
  for (auto rest = bytes; !rest.empty();) {
    const std::size_t next = std::min(DirectWriter::kWindow, rest.size());
    ASSERT_TRUE(writer.write(rest.first(next)));
    rest = rest.subspan(next);
  }
  ASSERT_TRUE(writer.end());
}

void expect_written(const Fd& file, std::span<const std::byte> bytes) {
  ASSERT_EQ(::ftruncate(file.get(), 0), 0);
  write(file, bytes);
  ASSERT_EQ(::lseek(file.get(), 0, SEEK_END), static_cast<off_t>(bytes.size()));
  if (bytes.empty()) return;
  const auto mapping = Mapping::of(file, 0, bytes.size(), Access::kRead);
  ASSERT_TRUE(mapping);
  ASSERT_EQ(std::memcmp(mapping.at(0), bytes.data(), bytes.size()), 0) << bytes.size();
}

class Direct : public ::testing::TestWithParam<const char*> {};
// A disk's file system, as a rule; and one of memory.
INSTANTIATE_TEST_SUITE_P(Folders, Direct, ::testing::Values("/var/tmp", "/dev/shm"));

TEST_P(Direct, FilesOfAnyLengthComeAsTheyWereWritten) {
  const Fd file = file_in(GetParam());
  ASSERT_TRUE(file) << "no file without a name in " << GetParam();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4095}, kPage, kPage + 1, DirectWriter::kWindow,
        DirectWriter::kWindow + 17, kMost - 5}) {
    expect_written(file, made_of(bytes));
  }
}

// Memory that begins in the midst of a word is none for a disk, so each write is refused (EINVAL).
TEST_P(Direct, WhatADiskRefusesIsWrittenTheUsualWay) {
  const Fd file = file_in(GetParam());
  ASSERT_TRUE(file);
  expect_written(file, made_of(kMost).subspan(1));
}

bool is_of_a_disk(const Fd& file) {
  struct statfs about {};
  constexpr decltype(about.f_type) kExt4 = 0xEF53;
  constexpr decltype(about.f_type) kXfs = 0x58465342;
  return ::fstatfs(file.get(), &about) == 0 && (about.f_type == kExt4 || about.f_type == kXfs);
}

TEST(DirectWriting, IsPastThePageCache) {
  const Fd file = file_in("/var/tmp");
  ASSERT_TRUE(file);
  if (!is_of_a_disk(file)) GTEST_SKIP() << "/var/tmp is on no ext4 or xfs";
  const auto all = made_of(kMost);
  DirectWriter writer(file.get());
  ASSERT_TRUE(writer.write(all.first(DirectWriter::kWindow)));
  EXPECT_NE(::fcntl(file.get(), F_GETFL) & O_DIRECT, 0);
  for (const std::size_t skip : {std::size_t{0}, std::size_t{1}}) {
    write(file, all.subspan(skip));
    Mapping mapping = Mapping::of(file, 0, kMost - skip, Access::kRead);
    ASSERT_TRUE(mapping);
    std::vector<unsigned char> there(kMost / kPage);
    ASSERT_EQ(::mincore(mapping.at(0), kMost - skip, there.data()), 0);
    std::size_t cached = 0;
    for (const unsigned char page : there) cached += page & 1U;
    EXPECT_LE(cached * kPage, 2 * DirectWriter::kWindow) << "of " << kMost;
  }
}

TEST(DirectWriting, ToAFullDiskIsAnError) {
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full);
  DirectWriter writer(full.get());
  errno = 0;
  EXPECT_FALSE(writer.write(made_of(kPage)));
  EXPECT_EQ(errno, ENOSPC);
}

}  // namespace
}  // namespace holdfast::os
