#include "table/saved.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/fd.h"
#include "os/files.h"
#include "table/state.h"

namespace holdfast::table {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEnding = ".safetensors";
constexpr std::uint64_t kLongestManifest = std::uint64_t{1} << 26;
constexpr const char* kManifest = "tables.json";
constexpr const char* kTitleOfManifest = "holdfast tables 1";
constexpr std::uint64_t kLongestHeader = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostServers = 10000;
constexpr std::size_t kBlock = std::size_t{1} << 20;

Error unusable(const std::string& path, const std::string& what) {
  return {Blame::kUser, cat(path, " is no file of saved tables that can be used: ", what)};
}

// One of a file's tensors: a part of each row.
struct Part {
  std::string name;
  const char* type;
  std::vector<std::uint64_t> shape;  // The first is the number of rows.
  std::uint64_t bytes = 0;           // Of one row.
  std::uint64_t at = 0;              // Where it begins, behind the header.
};

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

// What a file says of itself beside its tensors.
struct About {
  std::uint64_t run_id = 0;
  std::uint64_t step = 0;
  std::uint64_t updates = 0;
  std::uint64_t digest = 0;  // The sum of those of its rows.
};

Json header_of(const Spec& spec, const std::vector<Part>& parts, const About& about) {
  Json header;
  header["__metadata__"] = {{"table", spec.name},
                            {"table_of", to_text(std::span(&spec, 1))},
                            {"run", cat(about.run_id)},
                            {"step", cat(about.step)},
                            {"updates", cat(about.updates)},
                            {"digest", cat(about.digest)}};
  for (const Part& part : parts) {
    const std::uint64_t rows = part.shape.front();
    header[part.name] = {{"dtype", part.type},
                         {"shape", part.shape},
                         {"data_offsets", {part.at, part.at + rows * part.bytes}}};
  }
  return header;
}

// Of the row `row` of a table with this key.
std::uint64_t digest_of(const Spec& spec, std::uint64_t key, const std::byte* row) {
  const std::uint64_t values = digest(std::span(row, spec.value_bytes()), key);
  return digest(std::span(row + spec.state_offset(), spec.state_floats() * sizeof(float)), values);
}

bool write_block(int file, std::span<const std::byte> bytes) {
  return os::write_all(file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// The rows of a table in version v that are not evicted, part by part. False: errno says why not.
bool write_rows(int file, const Table& table, Version v) {
  const Spec& spec = *table.spec;
  const auto* const keys = reinterpret_cast<const std::byte*>(table.keys);
  const std::uint64_t rows = table.words->rows[v % 2];
  std::vector<std::byte> block;
  const auto write_each = [&](const std::byte* first, std::size_t stride, std::size_t bytes) {
    for (std::uint64_t row = 0; row < rows; ++row) {
      if (table.is_evicted(row, v)) continue;
      const std::byte* const from = first + row * stride;
      block.insert(block.end(), from, from + bytes);
      if (block.size() < kBlock) continue;
      if (!write_block(file, block)) return false;
      block.clear();
    }
    const bool is_written = write_block(file, block);
    block.clear();
    return is_written;
  };
  return write_each(keys, sizeof *table.keys, sizeof *table.keys) &&
         write_each(table.rows, spec.row_bytes(), spec.value_bytes()) &&
         write_each(table.rows + spec.state_offset(), spec.row_bytes(),
                    spec.state_floats() * sizeof(float));
}

bool sync_folder(const std::string& folder) {
  const os::Fd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return opened && ::fsync(opened.get()) == 0;
}

Status write_file(const std::string& path, const Table& table, About about) {
  const Version v = about.step;
  std::uint64_t rows = 0;
  for (std::uint64_t row = 0; row < table.words->rows[v % 2]; ++row) {
    if (table.is_evicted(row, v)) continue;
    about.digest += digest_of(*table.spec, table.keys[row], table.row(row));
    ++rows;
  }
  std::string header = header_of(*table.spec, parts_of(*table.spec, rows), about).dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  const std::string draft = path + ".new";
  const auto failed = [&] {
    const Error error = os::system_error(cat("cannot write ", path), errno);
    ::unlink(draft.c_str());
    return error;
  };
  const os::Fd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return failed();
  const bool is_written = write_block(file.get(), std::as_bytes(std::span(&length, 1))) &&
                          os::write_all(file.get(), header) && write_rows(file.get(), table, v) &&
                          ::fsync(file.get()) == 0;
  if (!is_written || ::rename(draft.c_str(), path.c_str()) != 0) return failed();
  return {};
}

// A file's head that was read and found right.
struct Opened {
  os::Fd file;
  std::vector<Part> parts;
  std::uint64_t rows = 0;
  About about;
};

// A file that blocks nobody who reads it.
Result<os::Fd> open_to_read(const std::string& path, std::uint64_t& bytes) {
  os::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return os::system_error(cat("cannot open ", path), errno);
  struct stat about {};
  if (::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return unusable(path, "it is no file");
  }
  bytes = static_cast<std::uint64_t>(about.st_size);
  return file;
}

bool read_number(const Json& header, const char* name, std::uint64_t& to) {
  const Json::json_pointer at(cat("/__metadata__/", name));
  if (!header.contains(at) || !header[at].is_string()) return false;
  const auto& text = header[at].get_ref<const std::string&>();
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, to);
  return read.ec == std::errc() && read.ptr == end;
}

Result<Opened> open_file(const std::string& path, const Spec& spec) {
  Opened opened;
  std::uint64_t bytes = 0;
  auto found = open_to_read(path, bytes);
  if (!found) return found.error();
  opened.file = *std::move(found);
  std::uint64_t length = 0;
  const int file = opened.file.get();
  const bool has_length = os::read_at(file, 0, std::as_writable_bytes(std::span(&length, 1)));
  if (!has_length || length > kLongestHeader || length > bytes) {
    return unusable(path, "it does not begin as a safetensors file");
  }
  std::string text(length, '\0');
  if (!os::read_at(file, sizeof length, std::as_writable_bytes(std::span(text)))) {
    return unusable(path, "it is cut short");
  }
  const Json header = Json::parse(text, nullptr, false);
  const Json::json_pointer of("/__metadata__/table_of");
  const Json::json_pointer shape("/keys/shape/0");
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
  if (opened.rows > bytes / sizeof(std::uint64_t)) {
    return unusable(path, "its header has numbers that make no sense");
  }
  opened.parts = parts_of(spec, opened.rows);
  const Part& last = opened.parts.back();
  const bool fits = header_of(spec, opened.parts, opened.about) == header &&
                    sizeof length + length + last.at + opened.rows * last.bytes == bytes;
  if (!fits) return unusable(path, "its header does not fit its size");
  for (Part& part : opened.parts) part.at += sizeof length + length;
  return opened;
}

}  // namespace

std::string Saved::file(std::size_t table, Rank server) const {
  return cat("table-", table, ".", server, "-of-", servers, ".step-", step, ".run-", run_id,
             kEnding);
}

Status save(const Tables& tables, const std::string& folder, const Saved& saved, Rank server) {
  HF_ASSERT(tables.version() == saved.step);
  if (Status made = os::make_directories(folder); !made) return made;
  for (std::size_t t = 0; t < saved.specs.size(); ++t) {
    const std::string path = folder + "/" + saved.file(t, server);
    Status written =
        write_file(path, tables.state_->tables[t], {saved.run_id, saved.step, tables.updates(t)});
    if (!written) return written;
  }
  if (!sync_folder(folder)) return os::system_error(cat("cannot sync ", folder), errno);
  return {};
}

void forget(const std::string& folder, const Saved& saved, Rank server) {
  const auto named = read_manifest(folder);
  if (named && named->run_id == saved.run_id && named->step == saved.step) return;
  for (std::size_t t = 0; t < saved.specs.size(); ++t) {
    ::unlink((folder + "/" + saved.file(t, server)).c_str());
  }
}

Status save_manifest(const std::string& folder, const Saved& saved) {
  Json all = Json::array();
  std::vector<std::string> known;
  for (std::size_t t = 0; t < saved.specs.size(); ++t) {
    Json files = Json::array();
    for (Rank server = 0; server < saved.servers; ++server) {
      known.push_back(saved.file(t, server));
      files.push_back(known.back());
      if (::access((folder + "/" + known.back()).c_str(), F_OK) == 0) continue;
      return Error{Blame::kWorld, cat("the parameter server number ", server,
                                      " has saved its rows, but ", folder, "/", known.back(),
                                      " is not here: tables have to be saved in a folder that "
                                      "all hosts share")};
    }
    all.push_back({{"name", saved.specs[t].name}, {"files", files}});
  }
  const Json manifest = {{"format", kTitleOfManifest},
                         {"run", saved.run_id},
                         {"step", saved.step},
                         {"servers", saved.servers},
                         {"tables", all},
                         {"specifications", to_text(saved.specs)}};
  const std::string text =
      manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  Status written = os::write_file_atomically(folder + "/" + kManifest, text, 0644);
  if (!written) return written;
  for (const std::string& name : os::names_in(folder)) {
    const bool is_saved = name.starts_with("table-") && name.find(".step-") != name.npos &&
                          name.find(".run-") != name.npos &&
                          (name.ends_with(kEnding) || name.ends_with(cat(kEnding, ".new")));
    if (!is_saved || std::find(known.begin(), known.end(), name) != known.end()) continue;
    ::unlink((folder + "/" + name).c_str());
  }
  return {};
}

Result<Saved> read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifest;
  std::uint64_t bytes = 0;
  const auto file = open_to_read(path, bytes);
  if (!file) {
    return Error{Blame::kUser,
                 cat("there are no saved tables in ", folder, ": ", file.error().what)};
  }
  std::string text(std::min(bytes, kLongestManifest), '\0');
  (void)os::read_at(file->get(), 0, std::as_writable_bytes(std::span(text)));
  const Json json = Json::parse(text, nullptr, false);
  const bool is_known = json.is_object() && json.value("format", Json()) == kTitleOfManifest &&
                        json.value("run", Json()).is_number_unsigned() &&
                        json.value("step", Json()).is_number_unsigned() &&
                        json.value("servers", Json()).is_number_unsigned() &&
                        json.value("specifications", Json()).is_string();
  Saved saved;
  if (!is_known || !from_text(json["specifications"].get<std::string>(), saved.specs) ||
      json["servers"].get<std::uint64_t>() - 1 >= kMostServers) {
    return unusable(path, "it is damaged, or of another release");
  }
  saved.run_id = json["run"].get<std::uint64_t>();
  saved.step = json["step"].get<std::uint64_t>();
  saved.servers = json["servers"].get<Rank>();
  return saved;
}

// Fills one table of a server from the files of all servers that have saved it.
class Loading {
 public:
  Loading(Tables::State& state, Table& table, const Saved& saved,
          const std::function<bool(std::uint64_t)>& mine)
      : state_(state), table_(table), saved_(saved), mine_(mine) {}

  Status add(const std::string& path) {
    auto opened = open_file(path, *table_.spec);
    if (!opened) return opened.error();
    const About& about = opened->about;
    if (about.run_id != saved_.run_id || about.step != saved_.step ||
        (updates_ && *updates_ != about.updates)) {
      return unusable(path, "it is of another save than tables.json");
    }
    updates_ = about.updates;
    digest_ = 0;
    constexpr std::uint64_t kRows = 4096;
    for (std::uint64_t from = 0; from < opened->rows; from += kRows) {
      Status added = add(path, *opened, from, std::min(kRows, opened->rows - from));
      if (!added) return added;
    }
    return digest_ == about.digest ? Status() : unusable(path, "its rows are damaged");
  }

  // The rows are found by their keys from here on.
  Status end() {
    if (Status taken = state_.reserve_rows(table_, rows_); !taken) return taken;
    state_.fill(table_, 0, rows_, {.update_count = updates_.value_or(0)});
    for (std::uint64_t row = 0; row < rows_; ++row) {
      if (table_.index.find(table_.keys[row], rows_) == row) continue;
      return Error{Blame::kUser, cat("table ", table_.spec->name, " was saved with key ",
                                     table_.keys[row], " twice")};
    }
    return {};
  }

 private:
  Status add(const std::string& path, const Opened& opened, std::uint64_t from,
             std::uint64_t count) {
    std::vector<std::vector<std::byte>> blocks;
    for (const Part& part : opened.parts) {
      auto& block = blocks.emplace_back(count * part.bytes);
      if (!os::read_at(opened.file.get(), part.at + from * part.bytes, block)) {
        return unusable(path, "it can not be read to its end");
      }
    }
    const std::size_t row_bytes = table_.spec->row_bytes();
    std::vector<std::byte> row;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint64_t key = 0;
      std::memcpy(&key, blocks[0].data() + i * sizeof key, sizeof key);
      row.assign(row_bytes, std::byte{});
      for (std::size_t p = 1; p < blocks.size(); ++p) {
        const std::size_t bytes = opened.parts[p].bytes;
        std::memcpy(row.data() + (p == 1 ? 0 : table_.spec->state_offset()),
                    blocks[p].data() + i * bytes, bytes);
      }
      digest_ += digest_of(*table_.spec, key, row.data());
      if (!mine_(key)) continue;
      if (Status taken = state_.reserve_rows(table_, rows_ + 1); !taken) return taken;
      table_.keys[rows_] = key;
      std::memcpy(table_.row(rows_++), row.data(), row_bytes);
    }
    return {};
  }

  Tables::State& state_;
  Table& table_;
  const Saved& saved_;
  const std::function<bool(std::uint64_t)>& mine_;
  std::uint64_t rows_ = 0;
  std::uint64_t digest_ = 0;              // Of the rows of the file that is read.
  std::optional<std::uint64_t> updates_;  // As all files say.
};

Status load(Tables& tables, const std::string& folder,
            const std::function<bool(std::uint64_t key)>& mine, const arena::Position& position) {
  HF_ASSERT(tables.fresh());
  const auto saved = read_manifest(folder);
  if (!saved) return saved.error();
  const std::string other = difference(saved->specs, tables.specs());
  if (!other.empty()) {
    return Error{Blame::kUser, cat("the tables saved in ", folder, " (there) are others than this ",
                                   "program's (here): ", other)};
  }
  Tables::State& state = *tables.state_;
  for (std::size_t t = 0; t < state.tables.size(); ++t) {
    Loading loading(state, state.tables[t], *saved, mine);
    for (Rank server = 0; server < saved->servers; ++server) {
      Status added = loading.add(folder + "/" + saved->file(t, server));
      if (!added) return added;
    }
    if (Status ended = loading.end(); !ended) return ended;
  }
  state.commit_filled(0, position);
  return {};
}

}  // namespace holdfast::table
