#include "table/saved.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "os/files.h"
#include "table/saved_file.h"
#include "table/state.h"

namespace holdfast::table {
namespace {

constexpr const char* kEnding = ".safetensors";
constexpr std::uint64_t kLongestManifest = std::uint64_t{1} << 26;
constexpr const char* kManifest = "tables.json";
constexpr const char* kTitleOfManifest = "holdfast tables 1";
constexpr std::uint64_t kMostServers = 10000;

// Also one that is not whole: a killed process has left it.
bool is_of_a_save(const std::string& name) {
  return name.starts_with("table-") && name.find(".step-") != name.npos &&
         name.find(".run-") != name.npos && name.find(kEnding) != name.npos;
}

// What a process has left that was killed as it gave a new manifest its name.
bool is_draft_of_manifest(const std::string& name) {
  return name.starts_with(cat(kManifest, '.')) && name.ends_with(".tmp");
}

// The files of each table, if all have names that may be those of files of a save.
bool read_files(const Json& tables, Saved& saved) {
  if (!tables.is_array() || tables.size() != saved.specs.size()) return false;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const Json& table = tables[t];
    const Json files = table.is_object() ? table.value("files", Json()) : Json();
    if (!files.is_array() || files.empty() || files.size() > kMostServers) return false;
    if (table.value("name", Json()) != saved.specs[t].name) return false;
    for (const Json& file : files) {
      if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>()) ||
          !is_of_a_save(file.get_ref<const std::string&>())) {
        return false;
      }
    }
    saved.files.push_back(files.get<std::vector<std::string>>());
  }
  return true;
}

// The rows of version about.step that are not evicted.
Status write_file(const std::string& path, const Table& table, About about) {
  const Spec& spec = *table.spec;
  const Version v = about.step;
  const std::uint64_t all = table.words->rows[v % 2];
  std::uint64_t rows = 0;
  for (std::uint64_t row = 0; row < all; ++row) {
    if (table.is_evicted(row, v)) continue;
    about.digest += digest_of(spec, table.keys[row], table.row(row));
    ++rows;
  }
  const auto parts = parts_of(spec, rows);
  const std::string head = head_of(metadata_of(spec, about), parts);
  NewFile file(path, parts, head.size());
  const std::uint64_t at_once = rows_at_once(spec);
  Block block;
  for (const Part& part : parts) block.emplace_back(at_once * part.bytes);
  std::uint64_t from = 0;
  std::uint64_t count = 0;
  for (std::uint64_t row = 0; row < all; ++row) {
    if (table.is_evicted(row, v)) continue;
    put_row(spec, table.keys[row], table.row(row), count, block);
    if (++count < at_once && from + count < rows) continue;
    if (Status written = file.write(from, count, block); !written) return written;
    from += std::exchange(count, 0);
  }
  return file.publish(head);
}

}  // namespace

std::string Saved::file(std::size_t table, Rank server) const {
  return cat("table-", table, ".", server, "-of-", servers, ".step-", step, ".run-", run_id,
             kEnding);
}

std::vector<std::string> Saved::files_of(std::size_t table) const {
  if (!files.empty()) return files.at(table);
  std::vector<std::string> names;
  for (Rank server = 0; server < servers; ++server) names.push_back(file(table, server));
  return names;
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
    const auto files = saved.files_of(t);
    for (std::size_t server = 0; server < files.size(); ++server) {
      known.push_back(files[server]);
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
    const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
    const bool is_old = is_of_a_save(name) && !is_known;
    if (is_old || is_draft_of_manifest(name)) ::unlink((folder + "/" + name).c_str());
  }
  return {};
}

Result<Saved> read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifest;
  std::uint64_t bytes = 0;
  const auto file = snapshot::open_to_read(path, bytes);
  if (!file) {
    return Error{Blame::kUser,
                 cat("there are no saved tables in ", folder, ": ", file.error().what)};
  }
  std::string text(std::min(bytes, kLongestManifest), '\0');
  (void)os::read_at(file->get(), 0, std::as_writable_bytes(std::span(text)));
  const Json json = snapshot::parse(text);
  const bool is_known = json.is_object() && json.value("format", Json()) == kTitleOfManifest &&
                        json.value("run", Json()).is_number_unsigned() &&
                        json.value("step", Json()).is_number_unsigned() &&
                        json.value("servers", Json()).is_number_unsigned() &&
                        json.value("specifications", Json()).is_string();
  Saved saved;
  if (!is_known || !from_text(json["specifications"].get<std::string>(), saved.specs) ||
      json["servers"].get<std::uint64_t>() - 1 >= kMostServers ||
      !read_files(json.value("tables", Json()), saved)) {
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
    const auto opened = open_file(path, *table_.spec, saved_, updates_);
    if (!opened) return opened.error();
    return read_rows(path, *table_.spec, *opened, [this](std::uint64_t key, const std::byte* row) {
      if (!mine_(key)) return Status();
      if (Status taken = state_.reserve_rows(table_, rows_ + 1); !taken) return taken;
      table_.keys[rows_] = key;
      std::memcpy(table_.row(rows_++), row, table_.spec->row_bytes());
      return Status();
    });
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
  Tables::State& state_;
  Table& table_;
  const Saved& saved_;
  const std::function<bool(std::uint64_t)>& mine_;
  std::uint64_t rows_ = 0;
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
    for (const std::string& file : saved->files_of(t)) {
      if (Status added = loading.add(folder + "/" + file); !added) return added;
    }
    if (Status ended = loading.end(); !ended) return ended;
  }
  state.commit_filled(0, position);
  return {};
}

}  // namespace holdfast::table
