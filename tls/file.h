// Reads the files that a TLS configuration names, with bounds.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace holdfast::tls {

// Tells whether a file was changed since it was read.
struct FileMark {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = -1;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;
  // False: the file was changed just before, so one more change could leave all the above equal.
  bool settled = false;
  bool operator==(const FileMark&) const = default;
};

struct FileContent {
  std::string bytes;
  FileMark mark;
};

enum class Guard : std::uint8_t {
  kShared,  // Anybody may read it, but not everybody may write to it.
  kSecret,  // It belongs to this user, nobody else has any right to it, and it is no link.
};

// Reads a plain file. `what` names it in errors: "the authority (ca_cert_path)".
//
// Errors (Blame::kUser) name the path and what to do: it is missing, is no plain file, is larger
// than `most_bytes`, or others have rights to it that they must not have. Blame::kWorld: this
// process or host has no descriptor left.
Result<FileContent> read_file(const std::string& path, std::string_view what,
                              std::size_t most_bytes, Guard guard);

// The mark of what lies there now; a default one if there is nothing.
FileMark mark_of(const std::string& path);

}  // namespace holdfast::tls
