#include "table/saved_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "table/saved.h"

namespace holdfast::table {
namespace {

Json header_of(const Json& metadata, const std::vector<Part>& parts) {
  Json header;
  header["__metadata__"] = metadata;
  for (const Part& part : parts) {
    const std::uint64_t rows = part.shape.front();
    header[part.name] = {{"dtype", part.type},
                         {"shape", part.shape},
                         {"data_offsets", {part.at, part.at + rows * part.bytes}}};
  }
  return header;
}

}  // namespace

Error unusable(const std::string& path, const std::string& what) {
  return {Blame::kUser, cat(path, " is no file of saved tables that can be used: ", what)};
}

std::vector<Part> parts_of(const Spec& spec, std::uint64_t rows) {
  const char* const type = spec.type == Type::kFloat32 ? "F32" : "BF16";
  std::vector<Part> parts{{"keys", "I64", {rows}, sizeof(std::uint64_t)},
                          {"rows", type, {rows, spec.values}, spec.value_bytes()}};
  if (const std::uint64_t floats = spec.state_floats(); floats > 0) {
    parts.push_back({"state", "F32", {rows, floats}, floats * sizeof(float)});
  }
  for (std::size_t i = 1; i < parts.size(); ++i) {
    parts[i].at = parts[i - 1].at + rows * parts[i - 1].bytes;
  }
  return parts;
}

Json metadata_of(const Spec& spec, const About& about) {
  return {{"table", spec.name},
          {"table_of", to_text(std::span(&spec, 1))},
          {"run", cat(about.run_id)},
          {"step", cat(about.step)},
          {"updates", cat(about.updates)},
          {"digest", cat(about.digest)}};
}

std::string head_of(const Json& metadata, const std::vector<Part>& parts, std::size_t at_least) {
  const std::string header = header_of(metadata, parts).dump();
  std::uint64_t length = (header.size() + 7) / 8 * 8;
  length = std::max<std::uint64_t>(length, at_least < sizeof length ? 0 : at_least - sizeof length);
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  head += header;
  head.resize(sizeof length + length, ' ');
  return head;
}

std::uint64_t digest_of(const Spec& spec, std::uint64_t key, const std::byte* row) {
  const std::uint64_t values = digest(std::span(row, spec.value_bytes()), key);
  return digest(std::span(row + spec.state_offset(), spec.state_floats() * sizeof(float)), values);
}

std::uint64_t rows_at_once(const Spec& spec) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  return std::max<std::size_t>(1, kBlock / (spec.row_bytes() + sizeof(std::uint64_t)));
}

bool read_number(const Json& header, const char* name, std::uint64_t& to) {
  const Json::json_pointer at(cat("/__metadata__/", name));
  if (!header.contains(at) || !header[at].is_string()) return false;
  const auto& text = header[at].get_ref<const std::string&>();
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, to);
  return read.ec == std::errc() && read.ptr == end;
}

Result<Opened> open_file(const std::string& path, const Spec& spec, const Saved& saved,
                         std::optional<std::uint64_t>& updates) {
  auto head = snapshot::read_head(path);
  if (!head) return head.error();
  const Json header = snapshot::parse(head->text);
  const Json::json_pointer of("/__metadata__/table_of");
  const Json::json_pointer shape("/keys/shape/0");
  Opened opened;
  About& about = opened.about;
  if (!header.is_object() || !header.contains(of) || !header[of].is_string() ||
      !header.contains(shape) || !header[shape].is_number_unsigned() ||
      !read_number(header, "run", about.run_id) || !read_number(header, "step", about.step) ||
      !read_number(header, "updates", about.updates) ||
      !read_number(header, "digest", about.digest)) {
    return unusable(path, "its header does not describe a table");
  }
  std::vector<Spec> there;
  if (!from_text(header[of].get<std::string>(), there) || there.size() != 1) {
    return unusable(path, "its table is described in a form that is unknown here");
  }
  const std::string other = difference(there, std::span(&spec, 1));
  if (!other.empty()) return unusable(path, cat("it is of another table: ", other));
  opened.rows = header[shape].get<std::uint64_t>();
  if (opened.rows > head->bytes / sizeof(std::uint64_t)) {
    return unusable(path, "its header has numbers that make no sense");
  }
  opened.parts = parts_of(spec, opened.rows);
  const Part& last = opened.parts.back();
  const bool fits = header_of(metadata_of(spec, about), opened.parts) == header &&
                    last.at + opened.rows * last.bytes == head->bytes;
  if (!fits) return unusable(path, "its header does not fit its size");
  if (about.run_id != saved.run_id || about.step != saved.step ||
      (updates && *updates != about.updates)) {
    return unusable(path, "it is of another save than tables.json");
  }
  updates = about.updates;
  for (Part& part : opened.parts) part.at += head->data;
  opened.file = std::move(head->file);
  return opened;
}

Status read_rows(const std::string& path, const Spec& spec, const Opened& opened,
                 const std::function<Status(std::uint64_t key, const std::byte* row)>& on_row) {
  const std::uint64_t at_once = rows_at_once(spec);
  Block block(opened.parts.size());
  std::vector<std::byte> row(spec.row_bytes());
  std::uint64_t digest = 0;
  for (std::uint64_t from = 0; from < opened.rows; from += at_once) {
    const std::uint64_t count = std::min(at_once, opened.rows - from);
    for (std::size_t p = 0; p < block.size(); ++p) {
      const Part& part = opened.parts[p];
      block[p].resize(count * part.bytes);
      if (!os::read_at(opened.file.get(), part.at + from * part.bytes, block[p])) {
        return unusable(path, "it can not be read to its end");
      }
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint64_t key = 0;
      std::memcpy(&key, block[0].data() + i * sizeof key, sizeof key);
      for (std::size_t p = 1; p < block.size(); ++p) {
        const std::size_t bytes = opened.parts[p].bytes;
        std::memcpy(row.data() + (p == 1 ? 0 : spec.state_offset()), block[p].data() + i * bytes,
                    bytes);
      }
      digest += digest_of(spec, key, row.data());
      if (Status done = on_row(key, row.data()); !done) return done;
    }
  }
  return digest == opened.about.digest ? Status() : unusable(path, "its rows are damaged");
}

void put_row(const Spec& spec, std::uint64_t key, const std::byte* row, std::uint64_t number,
             Block& block) {
  const std::size_t state_bytes = spec.state_floats() * sizeof(float);
  std::memcpy(block[0].data() + number * sizeof key, &key, sizeof key);
  std::memcpy(block[1].data() + number * spec.value_bytes(), row, spec.value_bytes());
  if (state_bytes == 0) return;
  std::memcpy(block[2].data() + number * state_bytes, row + spec.state_offset(), state_bytes);
}

NewFile::NewFile(std::string path, std::vector<Part> parts, std::size_t head_bytes)
    : path_(std::move(path)), parts_(std::move(parts)), draft_(path_, 0644) {
  if (draft_.get() < 0) unopened_ = errno;
  for (Part& part : parts_) part.at += head_bytes;
}

Error NewFile::failed() const {
  return os::system_error(cat("cannot write ", path_), unopened_ != 0 ? unopened_ : errno);
}

Status NewFile::write(std::uint64_t from, std::uint64_t count, const Block& block) {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    const std::span bytes(block[p].data(), count * part.bytes);
    if (!os::write_at(draft_.get(), part.at + from * part.bytes, bytes)) return failed();
  }
  return {};
}

Status NewFile::publish(const std::string& head) {
  const auto bytes = std::as_bytes(std::span(head));
  const bool is_whole =
      os::write_at(draft_.get(), 0, bytes) && ::fsync(draft_.get()) == 0 && draft_.publish();
  if (!is_whole) return failed();
  return os::sync_folder(os::folder_of(path_));
}

}  // namespace holdfast::table
