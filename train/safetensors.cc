#include "train/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/text.h"

namespace holdfast::train {
namespace {

constexpr std::size_t kAlignment = 4096;

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      out += code.data();
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string header_of(std::span<const SavedArray> arrays, std::span<const Note> metadata) {
  std::string text = "{\"__metadata__\":{";
  for (const auto& note : metadata) {
    text +=
        cat(&note == metadata.data() ? "" : ",", json_text(note.key), ":", json_text(note.value));
  }
  text += "}";
  std::size_t at = 0;
  for (const auto& array : arrays) {
    text += cat(",", json_text(array.name), ":{\"dtype\":\"", array.dtype, "\",\"shape\":[");
    for (std::size_t i = 0; i < array.shape.size(); ++i) {
      text += cat(i == 0 ? "" : ",", array.shape[i]);
    }
    text += cat("],\"data_offsets\":[", at, ",", at + array.bytes.size(), "]}");
    at += array.bytes.size();
  }
  text += "}";
  const std::size_t end = (8 + text.size() + kAlignment - 1) / kAlignment * kAlignment;
  text.resize(end - 8, ' ');
  return text;
}

bool write_all(int fd, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t wrote = ::write(fd, at, size);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    at += wrote;
    size -= static_cast<std::size_t>(wrote);
  }
  return true;
}

bool write_content(int fd, std::span<const SavedArray> arrays, const std::string& header) {
  static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");
  const std::uint64_t size = header.size();
  if (!write_all(fd, &size, sizeof size) || !write_all(fd, header.data(), header.size())) {
    return false;
  }
  for (const auto& array : arrays) {
    if (!write_all(fd, array.bytes.data(), array.bytes.size())) return false;
  }
  return ::fsync(fd) == 0;
}

Error failed(const std::string& what, const std::string& path) {
  const char* remedy = errno == ENOSPC || errno == EDQUOT
                           ? "; make room there or save to another disk"
                           : "; save to a folder that is there and can be written to";
  return {Blame::kWorld, cat("cannot ", what, " ", path, ": ", std::strerror(errno), remedy)};
}

// A file that takes the place of a device (/dev/null, by root) would harm the whole machine.
Status check_is_file(const std::string& path) {
  struct stat is {};
  if (::stat(path.c_str(), &is) != 0 || S_ISREG(is.st_mode)) return {};
  return Error{Blame::kUser, cat("cannot write ", path, ": it is ",
                                 S_ISDIR(is.st_mode) ? "a folder" : "no regular file",
                                 "; save under another name")};
}

// Without a name as long as it is written, where the file system can do that: a process that is
// killed meanwhile leaves nothing.
struct Draft {
  std::string name;
  int fd = -1;
  bool nameless = true;
};

Draft new_draft(const std::string& path, const std::string& folder) {
  Draft draft{cat(path, ".", ::getpid(), ".tmp")};
  if (::access("/proc/self/fd", X_OK) == 0) {  // Through which it gets its name.
    draft.fd = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
    if (draft.fd >= 0) return draft;
  }
  draft.nameless = false;
  draft.fd = ::open(draft.name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  return draft;
}

bool give_name(const Draft& draft) {
  if (!draft.nameless) return true;
  ::unlink(draft.name.c_str());  // What a process of this number has left in this instant, once.
  const std::string content = cat("/proc/self/fd/", draft.fd);
  return ::linkat(AT_FDCWD, content.c_str(), AT_FDCWD, draft.name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// The new name itself must reach the disk.
Status sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed("open the folder", folder);
  const bool synced = ::fsync(fd) == 0 || errno == EINVAL;  // Some file systems can not.
  ::close(fd);
  return synced ? Status{} : failed("write the folder", folder);
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const SavedArray> arrays,
                         std::span<const Note> metadata) {
  if (const Status file = check_is_file(path); !file) return file;
  const std::string folder = folder_of(path);
  const Draft draft = new_draft(path, folder);
  if (draft.fd < 0) return failed("create", path);
  const bool written = write_content(draft.fd, arrays, header_of(arrays, metadata)) &&
                       give_name(draft) && ::rename(draft.name.c_str(), path.c_str()) == 0;
  const Error error = failed("write", path);
  ::close(draft.fd);
  if (!written) {
    ::unlink(draft.name.c_str());
    return error;
  }
  return sync_folder(folder);
}

}  // namespace holdfast::train
