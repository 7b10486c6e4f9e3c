#include "snapshot/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "os/direct_writer.h"
#include "os/draft.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/folder.h"
#include "os/mapping.h"
#include "snapshot/safetensors.h"
#include "snapshot/seal.h"

namespace holdfast::snapshot {
namespace {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kManifestKey = "holdfast_snapshot";
constexpr int kManifestFormat = 1;
constexpr Seal kManifestSeal{",\n  \"xxh3\": \"", "\"\n}\n"};
constexpr std::uint64_t kLongestManifest = std::uint64_t{1} << 24;
constexpr std::size_t kLongestRelease = 100;
constexpr mode_t kRefused = os::Folder::kWriting;

std::string file_of(Rank rank) {
  return cat("rank-", rank, ".safetensors");
}

// Also a draft, as a killed process may leave it.
bool is_ours(const std::string& file) {
  return file.starts_with(kManifest) ||
         (file.starts_with("rank-") && file.find(".safetensors") != file.npos);
}

Error unusable(const std::string& path, const std::string& what) {
  return {Blame::kUser, cat(path, " can not be used: ", what)};
}

Status check_name(const std::string& name) {
  if (is_name(name)) return {};
  return Error{Blame::kUser, cat("'", printable(name), "' is no name of a snapshot")};
}

// The folder of a snapshot. Empty: it is not there.
Result<os::Folder> open_folder(const std::string& dir, const std::string& name) {
  if (Status right = check_name(name); !right) return right.error();
  return os::Folder::open(cat(dir, '/', name), kRefused);
}

// The names of DIR, of DIR itself, and of all above it that this user may open: somebody may have
// made them just now.
Status sync_from(const std::string& dir) {
  if (Status synced = os::sync_folder(dir); !synced) return synced;
  std::error_code error;
  const auto whole = std::filesystem::canonical(dir, error);
  for (auto above = whole.parent_path(); above != above.parent_path();
       above = above.parent_path()) {
    (void)os::sync_folder(above);
  }
  return {};
}

Status copy(const Shard& shard, int file, const std::string& path, Clock::time_point until) {
  const auto failed = [&path] { return os::system_error(cat("cannot write ", path), errno); };
  const auto from = os::Mapping::of(shard.file(), 0, shard.bytes(), os::Access::kRead);
  if (!from) return os::system_error(cat("cannot map what is to become ", path), errno);
  os::DirectWriter to(file);
  for (std::span<const std::byte> rest = from.bytes(); !rest.empty();) {
    if (Clock::now() >= until) {
      return Error{Blame::kWorld, cat("writing ", path, " was given up")};
    }
    const std::size_t bytes = std::min(os::DirectWriter::kWindow, rest.size());
    if (!to.write(rest.first(bytes))) return failed();
    rest = rest.subspan(bytes);
  }
  return to.end() ? Status() : failed();
}

// Whether the file of a rank is there, as long as it should be.
Status check_file(const os::Folder& folder, const File& file) {
  const std::string path = cat(folder.path(), '/', file_of(file.rank));
  struct stat about {};
  if (::fstatat(folder.get(), file_of(file.rank).c_str(), &about, 0) != 0) {
    return os::system_error(cat("a snapshot needs ", path), errno);
  }
  if (!S_ISREG(about.st_mode)) return unusable(path, "it is no file");
  const auto bytes = static_cast<std::uint64_t>(about.st_size);
  if (bytes == file.bytes) return {};
  return unusable(path,
                  cat("it has ", bytes, " bytes, and the snapshot's manifest says ", file.bytes));
}

std::string to_text(const Manifest& manifest) {
  Json files = Json::array();
  for (const File& file : manifest.files) {
    files.push_back({{"rank", file.rank}, {"bytes", file.bytes}, {"xxh3", hex(file.digest)}});
  }
  const Json json = {{kManifestKey, kManifestFormat},     {"job", manifest.job},
                     {"run_id", manifest.run_id},         {"version", manifest.version},
                     {"world_size", manifest.world_size}, {"servers", manifest.servers},
                     {"program", manifest.program},       {"release", manifest.release},
                     {"unix_ms", manifest.unix_ms},       {"files", files}};
  std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace);
  text.resize(text.size() - 2);  // "\n}", which comes with the seal.
  return text + kManifestSeal.of(text);
}

template <class Number>
bool read(const Json& json, const char* key, Number& to) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return false;
  if (std::is_signed_v<Number> == false && !found->is_number_unsigned()) return false;
  to = found->get<Number>();
  return Json(to) == *found;
}

bool read(const Json& json, const char* key, std::string& to) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return false;
  to = found->get<std::string>();
  return true;
}

// Manifests that do not say it are older.
bool read_release(const Json& json, std::string& to) {
  return !json.contains("release") || (read(json, "release", to) && to.size() <= kLongestRelease);
}

// Each rank from 0 on has one file.
bool read_files(const Json& json, Manifest& manifest) {
  const auto files = json.find("files");
  if (files == json.end() || !files->is_array()) return false;
  for (const Json& one : *files) {
    File file;
    std::string digest;
    if (!one.is_object() || !read(one, "rank", file.rank) || !read(one, "bytes", file.bytes) ||
        !read(one, "xxh3", digest) || !number_of_hex(digest)) {
      return false;
    }
    file.digest = *number_of_hex(digest);
    manifest.files.push_back(file);
  }
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const File& a, const File& b) { return a.rank < b.rank; });
  Rank next = 0;
  for (const File& file : manifest.files) {
    if (file.rank != next++) return false;
  }
  return next == manifest.world_size;
}

Result<Manifest> from_text(const std::string& text, const std::string& path) {
  if (!kManifestSeal.check(text)) return unusable(path, "it is damaged");
  const Json json = parse(text);
  int format = 0;
  if (!json.is_object() || !read(json, kManifestKey, format))
    return unusable(path, "it is none of ours");
  if (format != kManifestFormat) {
    return unusable(path,
                    cat("it is of format ", format, ", and this release knows ", kManifestFormat));
  }
  Manifest manifest;
  const bool is_right =
      read(json, "job", manifest.job) && read(json, "run_id", manifest.run_id) &&
      read(json, "version", manifest.version) && read(json, "world_size", manifest.world_size) &&
      read(json, "servers", manifest.servers) && read(json, "program", manifest.program) &&
      read(json, "unix_ms", manifest.unix_ms) && read_release(json, manifest.release) &&
      manifest.world_size > 0 && manifest.servers >= 0 && manifest.servers < manifest.world_size &&
      read_files(json, manifest);
  if (!is_right) return unusable(path, "it makes no sense");
  return manifest;
}

// Whether it has a manifest, and whether it has nothing else than files of a snapshot.
struct Look {
  bool has_manifest = false;
  std::string other;  // A name that is none of ours.
};
Look look_into(const os::Folder& folder) {
  Look look;
  for (const std::string& file : folder.names()) {
    if (file == kManifest) look.has_manifest = true;
    if (!is_ours(file)) look.other = file;
  }
  return look;
}

}  // namespace

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= 100 &&
         name.find_first_not_of("0123456789abcdef-") == std::string::npos;
}

std::string path_of(const std::string& dir, const std::string& name, Rank rank) {
  return cat(dir, '/', name, '/', file_of(rank));
}

Result<File> store_shard(const std::string& from, const std::string& dir, const std::string& name,
                         Rank rank, Clock::time_point until) {
  if (Status right = check_name(name); !right) return right.error();
  const auto shard = Shard::open(from);
  if (!shard) return shard.error();
  if (Status made = os::make_directories(dir); !made) return made.error();
  const auto folder = os::Folder::make(cat(dir, '/', name), kRefused);
  if (!folder) return folder.error();
  const std::string path = path_of(dir, name, rank);
  os::Draft draft({folder->get(), folder->path(), file_of(rank)}, 0600);
  if (draft.get() < 0) return os::system_error(cat("cannot write ", path), errno);
  if (Status copied = copy(*shard, draft.get(), path, until); !copied) return copied.error();
  if (!draft.publish()) return os::system_error(cat("cannot write ", path), errno);
  if (Status synced = folder->sync(); !synced) return synced.error();
  return File{.rank = rank, .bytes = shard->bytes(), .digest = shard->digest()};
}

Status name_snapshot(const std::string& dir, const std::string& name, const Manifest& manifest) {
  const auto folder = open_folder(dir, name);
  if (!folder) return folder.error();
  const std::string path = cat(dir, '/', name, '/', kManifest);
  if (!*folder) return os::system_error(cat("cannot write ", path), ENOENT);
  // What could not be read is not written.
  const std::string text = to_text(manifest);
  if (const auto read = from_text(text, path); !read) return read.error();
  for (const File& file : manifest.files) {
    if (Status there = check_file(*folder, file); !there) {
      return Error{Blame::kUser, cat(there.error().what, "; all hosts have to share ", dir)};
    }
  }
  if (Status written = folder->write(kManifest, text); !written) return written;
  return sync_from(dir);
}

Result<Manifest> read_manifest(const std::string& dir, const std::string& name) {
  const auto folder = open_folder(dir, name);
  if (!folder) return folder.error();
  const std::string path = cat(dir, '/', name, '/', kManifest);
  std::uint64_t bytes = 0;
  const auto file = open_to_read(path, bytes);
  if (!file) return Error{file.error().blame, cat("there is no snapshot: ", file.error().what)};
  if (bytes > kLongestManifest) return unusable(path, "it is too long");
  std::string text(bytes, '\0');
  if (!os::read_at(file->get(), 0, std::as_writable_bytes(std::span(text)))) {
    return unusable(path, "it can not be read to its end");
  }
  auto manifest = from_text(text, path);
  if (!manifest) return manifest;
  for (const File& one : manifest->files) {
    if (Status there = check_file(*folder, one); !there) return there.error();
  }
  return manifest;
}

Result<Shard> open_shard(const std::string& dir, const std::string& name, const File& file) {
  const std::string path = path_of(dir, name, file.rank);
  auto shard = Shard::open(path);
  if (!shard || (shard->bytes() == file.bytes && shard->digest() == file.digest)) return shard;
  return unusable(path, "it is a shard of another snapshot than its manifest");
}

void read_ahead(const std::string& dir, const std::string& name, std::uint64_t most) {
  const auto manifest = read_manifest(dir, name);
  if (!manifest) return;
  std::uint64_t left = most;
  for (const File& file : manifest->files) {
    if (file.bytes > left) return;
    left -= file.bytes;
  }
  constexpr std::uint64_t kWindow = std::uint64_t{1} << 25;  // The kernel takes little at once.
  for (const File& file : manifest->files) {
    const auto shard = open_shard(dir, name, file);
    for (std::uint64_t at = 0; shard && at < file.bytes; at += kWindow) {
      os::read_ahead(shard->file().get(), at, kWindow);
    }
  }
}

Status verify(const std::string& dir, const std::string& name) {
  const auto manifest = read_manifest(dir, name);
  if (!manifest) return manifest.error();
  for (const File& file : manifest->files) {
    const auto shard = open_shard(dir, name, file);
    if (!shard) return shard.error();
    for (const Shard::Tensor& tensor : shard->tensors()) {
      if (Status right = shard->check(tensor); !right) return right;
    }
  }
  return {};
}

Result<Listing> find(const std::string& dir) {
  const os::Fd opened(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened && errno == ENOENT) return Listing();
  if (!opened) return os::system_error(cat("cannot read the snapshots in ", dir), errno);
  Listing listing;
  for (const std::string& name : os::names_in(dir)) {
    std::error_code error;
    if (!is_name(name) || !std::filesystem::is_directory(cat(dir, '/', name), error)) continue;
    const auto folder = open_folder(dir, name);
    if (!folder) {
      listing.unusable.push_back(folder.error().what);
      continue;
    }
    const Look look = look_into(*folder);
    if (!look.has_manifest && look.other.empty()) listing.half.push_back(name);
    if (!look.has_manifest) continue;
    auto manifest = read_manifest(dir, name);
    if (manifest) {
      listing.whole.push_back({name, *std::move(manifest)});
    } else {
      listing.unusable.push_back(manifest.error().what);
    }
  }
  std::sort(listing.whole.begin(), listing.whole.end(), [](const Found& a, const Found& b) {
    return std::tie(a.manifest.unix_ms, a.manifest.version, a.name) >
           std::tie(b.manifest.unix_ms, b.manifest.version, b.name);
  });
  return listing;
}

Status remove(const std::string& dir, const std::string& name) {
  const auto folder = open_folder(dir, name);
  if (!folder) return folder.error();
  if (!*folder) return {};
  if (const Look look = look_into(*folder); !look.other.empty()) {
    return Error{Blame::kUser, cat(folder->path(), " has ", printable(look.other),
                                   ", which is none of a snapshot's files; it is left alone")};
  }
  if (Status removed = folder->remove(kManifest); !removed) return removed;
  if (Status synced = folder->sync(); !synced) return synced;
  if (Status cleared = folder->clear(); !cleared) return cleared;
  if (::rmdir(folder->path().c_str()) != 0 && errno != ENOENT) {
    return os::system_error(cat("cannot remove ", folder->path()), errno);
  }
  return os::sync_folder(dir);
}

}  // namespace holdfast::snapshot
