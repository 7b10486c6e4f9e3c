#include "snapshot/shard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "base/digest.h"
#include "base/number.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "snapshot/safetensors.h"
#include "snapshot/seal.h"

namespace holdfast::snapshot {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;  // What a cache holds between two looks at it.
constexpr std::uint64_t kAhead = std::uint64_t{1} << 25;  // What the disk reads meanwhile.
constexpr std::size_t kLine = 64;                         // To which the tensors are aligned.
constexpr const char* kShardKey = "holdfast_shard";
constexpr const char* kShardFormat = "1";
constexpr std::string_view kDigest = "xxh3";
constexpr Seal kHeaderSeal{",\"xxh3\":\"", "\"}}"};

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string digest_key(const std::string& tensor) {
  return cat(kDigest, '.', tensor);
}

// All before the tensors. As long for any digests.
std::string head_of(const About& about, std::span<const Piece> pieces,
                    const std::vector<std::uint64_t>& digests) {
  std::string text = "{";
  std::uint64_t at = 0;
  for (const Piece& piece : pieces) {
    const std::uint64_t end = at + piece.bytes.size();
    text += cat(quoted(piece.name), ":{\"dtype\":\"U8\",\"shape\":[", piece.bytes.size(),
                "],\"data_offsets\":[", std::exchange(at, end), ',', end, "]},");
  }
  text += cat("\"__metadata__\":{\"", kShardKey, "\":\"", kShardFormat, '"');
  for (const auto& [key, value] : about) text += cat(',', quoted(key), ':', quoted(value));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    text += cat(',', quoted(digest_key(pieces[i].name)), ":\"", hex(digests[i]), '"');
  }
  std::uint64_t length = text.size() + kHeaderSeal.size();
  length += (kLine - (sizeof length + length) % kLine) % kLine;
  text.resize(length - kHeaderSeal.size(), ' ');
  text += kHeaderSeal.of(text);
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  return head + text;
}

// Takes the whole room at once, so that none is taken in vain where there is too little.
bool take_room(int file, std::uint64_t bytes) {
  int result = -1;
  do {
    result = ::fallocate(file, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
}

bool write(int file, const About& about, std::span<const Piece> pieces) {
  std::vector<std::uint64_t> digests(pieces.size());
  std::uint64_t at = head_of(about, pieces, digests).size();
  std::uint64_t end = at;
  for (const Piece& piece : pieces) end += piece.bytes.size();
  if (!take_room(file, end)) return false;
  if (::ftruncate(file, static_cast<off_t>(end)) != 0) return false;  // It may have been longer.
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Digest digest;
    for (auto rest = pieces[i].bytes; !rest.empty();) {
      const auto block = rest.first(std::min(kBlock, rest.size()));
      digest.add(block);
      if (!os::write_at(file, at, block)) return false;
      at += block.size();
      rest = rest.subspan(block.size());
    }
    digests[i] = digest.value();
  }
  const std::string head = head_of(about, pieces, digests);
  return os::write_at(file, 0, std::as_bytes(std::span(head)));
}

std::optional<std::uint64_t> number_at(const Json& list, std::size_t i) {
  if (!list.is_array() || list.size() != 2 || !list[i].is_number_unsigned()) return std::nullopt;
  return list[i].get<std::uint64_t>();
}

// What the file was before is no shard from here on. False: errno says why.
bool forget(int file) {
  struct stat now {};
  if (::fstat(file, &now) != 0) return false;
  const std::array<std::byte, sizeof(std::uint64_t)> nothing{};
  return now.st_size == 0 || os::write_at(file, 0, nothing);
}

}  // namespace

Status write_shard(const std::string& path, const About& about, std::span<const Piece> pieces) {
  for (const auto& [key, value] : about) {
    HF_ASSERT(!key.starts_with(kDigest) && !key.starts_with("holdfast"));
  }
  if (head_of(about, pieces, std::vector<std::uint64_t>(pieces.size())).size() > kLongestHeader) {
    return Error{Blame::kUser,
                 cat(path, " can not be written: a snapshot's shard of ", pieces.size(),
                     " tensors has too many tensors, or names too long")};
  }
  const auto file = os::open_own_file(path, O_RDWR | O_CREAT);
  if (!file) return file.error();
  if (forget(file->get()) && write(file->get(), about, pieces)) return {};
  const int error_number = errno;
  ::unlink(path.c_str());
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes.size();
  return os::system_error(cat("cannot write the ", bytes, " bytes of a snapshot's shard to ", path,
                              ", in the folder ", os::folder_of(path)),
                          error_number);
}

Error Shard::damaged(const std::string& what) const {
  return {Blame::kUser, cat(path_, " is damaged, or no shard of a snapshot: ", what)};
}

Result<Shard> Shard::open(const std::string& path) {
  auto head = read_head(path);
  if (!head) return head.error();
  Shard shard;
  shard.path_ = path;
  shard.bytes_ = head->data + head->bytes;
  const auto digest = kHeaderSeal.check(head->text);
  if (!digest) return shard.damaged("its header is not as it was written");
  shard.digest_ = *digest;
  shard.head_bytes_ = head->data;
  if (!shard.read_header(head->text)) return shard.damaged("its header makes no sense");
  std::uint64_t end = head->data;
  for (const Tensor& tensor : shard.tensors_) {
    if (tensor.at != end) return shard.damaged("its tensors overlap, or leave a gap");
    end += tensor.bytes;
  }
  if (end != shard.bytes_) return shard.damaged("its size is not that of its tensors");
  shard.file_ = std::move(head->file);
  return shard;
}

// A digest is worth nothing against somebody who means it: nothing is believed for the seal's sake.
bool Shard::read_header(const std::string& text) {
  const Json header = parse(text);
  if (!header.is_object()) return false;
  const auto found = header.find("__metadata__");
  if (found == header.end() || !found->is_object()) return false;
  const Json& metadata = *found;
  if (metadata.value(kShardKey, Json()) != kShardFormat) return false;
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) return false;
    if (key != kShardKey && !key.starts_with(kDigest)) about_[key] = value.get<std::string>();
  }
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    if (!tensor.is_object()) return false;
    const Json range = tensor.value("data_offsets", Json());
    const auto begin = number_at(range, 0);
    const auto end = number_at(range, 1);
    const auto digest = number_of_hex(metadata.value(digest_key(name), std::string()));
    if (!begin || !end || *begin > *end || *end > bytes_ - head_bytes_ || !digest ||
        tensor.value("dtype", Json()) != "U8" ||
        tensor.value("shape", Json()) != Json::array({*end - *begin})) {
      return false;
    }
    tensors_.push_back({name, *end - *begin, head_bytes_ + *begin, *digest});
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.at, a.bytes, a.name) < std::tie(b.at, b.bytes, b.name);
  });
  return true;
}

std::string Shard::about(const std::string& key) const {
  const auto found = about_.find(key);
  return found == about_.end() ? "" : found->second;
}

const Shard::Tensor* Shard::find(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&name](const Tensor& one) { return one.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

Status Shard::read(const Tensor& tensor, std::span<std::byte> to) const {
  HF_ASSERT(to.size() == tensor.bytes);
  return read_through(
      tensor, [to](std::uint64_t done, std::size_t bytes) { return to.subspan(done, bytes); });
}

Status Shard::check(const Tensor& tensor) const {
  std::vector<std::byte> block(std::min<std::uint64_t>(kBlock, tensor.bytes));
  return read_through(
      tensor, [&block](std::uint64_t, std::size_t bytes) { return std::span(block).first(bytes); });
}

// Through the page cache: on a host with several ranks each of them reads what all hold alike.
Status Shard::read_through(const Tensor& tensor, const Room& room) const {
  Digest digest;
  for (std::uint64_t done = 0; done < tensor.bytes;) {
    const std::uint64_t at = tensor.at + done;
    const auto block = room(done, std::min<std::uint64_t>(kBlock, tensor.bytes - done));
    if (done % kAhead == 0) os::read_ahead(file_.get(), at, 2 * kAhead);
    if (!os::read_at(file_.get(), at, block)) return damaged("it can not be read to its end");
    digest.add(block);
    done += block.size();
  }
  if (digest.value() == tensor.digest) return {};
  return damaged(cat("its tensor `", printable(tensor.name), "` is not as it was written"));
}

}  // namespace holdfast::snapshot
