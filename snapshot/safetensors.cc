#include "snapshot/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>

#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"

namespace holdfast::snapshot {

Result<os::Fd> open_to_read(const std::string& path, std::uint64_t& bytes) {
  os::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return os::system_error(cat("cannot open ", path), errno);
  struct stat about {};
  if (::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return Error{Blame::kUser, cat(path, " can not be used: it is no file")};
  }
  bytes = static_cast<std::uint64_t>(about.st_size);
  return file;
}

Json parse(const std::string& text) {
  constexpr int kDeepest = 8;
  int depth = 0;
  bool in_string = false;
  // The library could leave out what is deep, in a time that grows with the square of the length.
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    if (depth > kDeepest) return Json::value_t::discarded;
  }
  return Json::parse(text, nullptr, false);
}

Result<Head> read_head(const std::string& path) {
  const auto unusable = [&path](const char* what) {
    return Error{Blame::kUser, cat(path, " can not be used: ", what)};
  };
  Head head;
  auto found = open_to_read(path, head.bytes);
  if (!found) return found.error();
  head.file = *std::move(found);
  std::uint64_t length = 0;
  const int file = head.file.get();
  const bool has_length = os::read_at(file, 0, std::as_writable_bytes(std::span(&length, 1)));
  if (!has_length || length > kLongestHeader || length > head.bytes) {
    return unusable("it does not begin as a safetensors file");
  }
  head.text.resize(length);
  if (!os::read_at(file, sizeof length, std::as_writable_bytes(std::span(head.text)))) {
    return unusable("it is cut short");
  }
  head.data = sizeof length + length;
  head.bytes -= head.data;
  return head;
}

}  // namespace holdfast::snapshot
