// DirectWriter: a large file on a disk, written from memory. Where its file system can (O_DIRECT),
// the disk takes the bytes itself: no processor copies them into the page cache, which is left to
// those who need it. Elsewhere they go the usual way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace holdfast::os {

// Writes one file from its beginning to its end. It stays open, and is the caller's.
class DirectWriter {
 public:
  explicit DirectWriter(int file);

  // The next bytes: kWindow of them, or fewer if they are the last. Their memory begins at a page.
  // False: errno says why.
  static constexpr std::size_t kWindow = std::size_t{1} << 23;
  [[nodiscard]] bool write(std::span<const std::byte> bytes);
  // Once all is written: it is on the disk. False: errno says why.
  [[nodiscard]] bool end() const;

 private:
  bool write_cached(std::span<const std::byte> bytes);

  const int file_;
  std::uint64_t at_ = 0;
  std::uint64_t done_ = 0;  // Up to here nothing is left in the page cache.
  bool is_direct_ = false;
};

}  // namespace holdfast::os
