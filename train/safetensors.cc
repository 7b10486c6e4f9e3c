#include "train/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "os/draft.h"
#include "os/fd.h"
#include "os/files.h"

namespace holdfast::train {
namespace {

constexpr std::size_t kAlignment = 4096;

std::string header_of(std::span<const SavedArray> arrays, std::span<const Note> metadata) {
  nlohmann::ordered_json json{{"__metadata__", nlohmann::ordered_json::object()}};
  for (const auto& note : metadata) json["__metadata__"][note.key] = note.value;
  std::size_t at = 0;
  for (const auto& array : arrays) {
    const std::size_t end = at + array.bytes.size();
    json[array.name] = {
        {"dtype", array.dtype}, {"shape", array.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::size_t end = (8 + text.size() + kAlignment - 1) / kAlignment * kAlignment;
  text.resize(end - 8, ' ');
  return text;
}

bool write_content(int fd, std::span<const SavedArray> arrays, const std::string& header) {
  static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");
  const std::uint64_t size = header.size();
  std::string beginning(sizeof size, '\0');
  std::memcpy(beginning.data(), &size, sizeof size);
  if (!os::write_all(fd, beginning + header)) return false;
  for (const auto& array : arrays) {
    const auto* bytes = reinterpret_cast<const char*>(array.bytes.data());
    if (!os::write_all(fd, {bytes, array.bytes.size()})) return false;
  }
  return ::fsync(fd) == 0;
}

Error failed(const std::string& what, const std::string& path) {
  const char* hint = errno == ENOSPC || errno == EDQUOT
                         ? "; make room there or save to another disk"
                         : "; save to a folder that is there and can be written to";
  return {Blame::kWorld, cat("cannot ", what, " ", path, ": ", std::strerror(errno), hint)};
}

// A file that takes the place of a device (/dev/null, by root) would harm the whole machine.
Status check_is_file(const std::string& path) {
  struct stat is {};
  if (::stat(path.c_str(), &is) != 0 || S_ISREG(is.st_mode)) return {};
  return Error{Blame::kUser, cat("cannot write ", path, ": it is ",
                                 S_ISDIR(is.st_mode) ? "a folder" : "no regular file",
                                 "; save under another name")};
}

// The new name itself must reach the disk.
Status sync_folder(const std::string& folder) {
  const os::Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed("open the folder", folder);
  const bool synced = ::fsync(fd.get()) == 0 || errno == EINVAL;  // Some file systems can not.
  return synced ? Status{} : failed("write the folder", folder);
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const SavedArray> arrays,
                         std::span<const Note> metadata) {
  if (const Status file = check_is_file(path); !file) return file;
  const std::string folder = os::folder_of(path);
  os::Draft draft(path, 0644);
  if (draft.get() < 0) return failed("create", path);
  if (!write_content(draft.get(), arrays, header_of(arrays, metadata)) || !draft.publish()) {
    return failed("write", path);
  }
  return sync_folder(folder);
}

}  // namespace holdfast::train
