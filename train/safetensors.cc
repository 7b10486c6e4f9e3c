#include "train/safetensors.h"

#include <fcntl.h>
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
  return {Blame::kWorld, cat("cannot ", what, " ", path, ": ", std::strerror(errno))};
}

// The new name itself must reach the disk.
Status sync_folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed("open the folder", folder);
  const bool synced = ::fsync(fd) == 0 || errno == EINVAL;  // Some file systems can not.
  ::close(fd);
  return synced ? Status{} : failed("write the folder", folder);
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const SavedArray> arrays,
                         std::span<const Note> metadata) {
  const std::string temporary = cat(path, ".", ::getpid(), ".tmp");
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return failed("create", temporary);
  const bool written = write_content(fd, arrays, header_of(arrays, metadata));
  const Error error = failed("write", temporary);
  ::close(fd);
  if (!written) {
    ::unlink(temporary.c_str());
    return error;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const Error renaming = failed("write", path);
    ::unlink(temporary.c_str());
    return renaming;
  }
  return sync_folder_of(path);
}

}  // namespace holdfast::train
