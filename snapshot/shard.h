// A shard: what one rank has to give to a snapshot, as a safetensors file. Its tensors are bytes
// (U8, one dimension). Its metadata have the digest of each tensor and, at the end, that of the
// header itself. So each byte of the file is known to be right, and the header's digest stands for
// all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/fd.h"

namespace holdfast::snapshot {

// What a shard says of itself, for those who read it. No key begins with "xxh3" or "holdfast".
using About = std::map<std::string, std::string>;

struct Piece {
  std::string name;  // Another one for each piece; not "__metadata__".
  std::span<const std::byte> bytes;
};

// Writes a file with mode 0600. The memory of a file that has this name is used again, since to
// take new memory takes longer than to copy. It is read once and written once, and not synced: the
// folder is one of memory (tmpfs), and somebody waits. The header comes last, so what a kill leaves
// is no shard. Requires: nobody reads the file meanwhile. Error: it could not be written, as if
// there is no room in its folder; nothing is left.
[[nodiscard]] Status write_shard(const std::string& path, const About& about,
                                 std::span<const Piece> pieces);

// A shard to be read. Whoever may have written it: the header is checked, with the place of each
// tensor, before anything is believed. Errors name the file.
class Shard {
 public:
  struct Tensor {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t at = 0;  // In the file.
    std::uint64_t digest = 0;
  };

  // Error (kUser): it is damaged, or no shard.
  [[nodiscard]] static Result<Shard> open(const std::string& path);

  [[nodiscard]] const About& about() const { return about_; }
  [[nodiscard]] std::string about(const std::string& key) const;  // Empty: it does not say.
  // In the order in which they lie, one behind the other up to the end.
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] const Tensor* find(const std::string& name) const;  // nullptr: there is none.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }      // Of the file.
  [[nodiscard]] std::uint64_t digest() const { return digest_; }    // For all of its bytes.
  [[nodiscard]] const os::Fd& file() const { return file_; }

  // Reads a whole tensor into as many bytes. Error (kUser): it is damaged; what came is there.
  [[nodiscard]] Status read(const Tensor& tensor, std::span<std::byte> to) const;
  // Reads all of it. Error (kUser): it is damaged.
  [[nodiscard]] Status check(const Tensor& tensor) const;

 private:
  [[nodiscard]] Error damaged(const std::string& what) const;
  [[nodiscard]] bool read_header(const std::string& text);
  using Room = std::function<std::span<std::byte>(std::uint64_t done, std::size_t bytes)>;
  [[nodiscard]] Status read_through(const Tensor& tensor, const Room& room) const;

  std::string path_;
  os::Fd file_;
  std::uint64_t head_bytes_ = 0;  // All before the tensors.
  About about_;
  std::vector<Tensor> tensors_;
  std::uint64_t bytes_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace holdfast::snapshot
