// Lost pages: memory whose contents a memory error has taken. The kernel says so by SIGBUS to
// whoever touches such a page. In a guarded range the signal's handler writes the loss down, puts a
// page of zeros in its place, and the program goes on; whoever uses the range looks at what was
// written down. Anywhere else SIGBUS does what it did before: mostly it ends the process.
//
// A process that was forked from this one has no guards: it dies, for it would note the loss where
// nobody looks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "os/fd.h"
#include "os/mapping.h"

namespace holdfast::os {

struct Loss {
  std::uint64_t offset = 0;  // In bytes, from the guarded range's beginning.
  std::uint64_t bytes = 0;
};

// Where losses are written down, before the pages of zeros are there. It may lie in a file, to
// outlive the process. Any bytes are a list. Read it when no thread touches the range.
struct LossList {
  static constexpr std::size_t kMost = 64;
  std::uint64_t count = 0;  // So many were lost; more than kMost: those beyond are not listed.
  Loss losses[kMost];

  [[nodiscard]] bool is_whole() const { return count <= kMost; }
  [[nodiscard]] std::span<const Loss> all() const {
    return std::span(losses).first(count < kMost ? count : kMost);
  }
};

// Guards whole pages for as long as it lives. Any thread.
class [[nodiscard]] PageGuard {
 public:
  PageGuard() = default;
  // A mapping of a file, shared with other processes, from `offset` of the file on. Takes the
  // descriptor. `list` must outlive the guard, and not lie in `pages`. Empty: there is no room for
  // another guard (4,096), or there are no whole pages.
  static PageGuard over_file(std::span<std::byte> pages, Fd file, std::uint64_t offset,
                             LossList* list);
  // Private memory. Guards the whole pages within the range. What is lost there is only counted.
  static PageGuard over_memory(std::span<std::byte> memory);
  PageGuard(PageGuard&& other) noexcept
      : entry_(std::exchange(other.entry_, 0)), file_(std::move(other.file_)) {}
  PageGuard& operator=(PageGuard&& other) noexcept {
    std::swap(entry_, other.entry_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~PageGuard();

  explicit operator bool() const { return entry_ != 0; }

 private:
  std::size_t entry_ = 0;  // Its place in the table, from 1 on; 0: none.
  Fd file_;
};

// How many pages of guarded ranges this process has lost so far. Waits until the last one is
// replaced, so that nothing is written to it before. Any thread.
[[nodiscard]] std::uint64_t pages_lost();
// Reads a byte of each page, so that what is lost of these is noticed.
void touch(std::span<const std::byte> bytes);
// Call it now and then: a library or the program may have installed a handler of its own for SIGBUS
// since. That one gets all that is not of a guarded range.
void keep_handler();
// How many of these were private memory.
[[nodiscard]] std::uint64_t private_pages_lost();

// For drills and tests: takes the page at `address` away, as a memory error does. Whoever touches
// it gets SIGBUS. (If a file is mapped there, its contents stay there until that is handled.)
void lose_page(void* address);

}  // namespace holdfast::os
