#include "table/arrival.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "arena/format.h"
#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "table/state.h"

namespace holdfast::table {
namespace {

constexpr std::uint64_t kBeginning = kSlotsOffset;  // The head and the words of each table.

Error unread(const std::string& path) {
  if (errno != 0) return os::system_error(cat("cannot read ", path), errno);
  return {Blame::kWorld, cat("The table file ", path, " is cut short.")};
}

// By table, how many rows a version has; `beginning` is that of its file. Error: it is no such
// file.
Result<std::vector<std::uint64_t>> rows_in(std::span<const std::byte> beginning,
                                           const std::vector<Spec>& specs, Version version,
                                           const std::string& name) {
  Header header;
  std::memcpy(&header, beginning.data(), sizeof header);
  const std::string text = to_text(specs);
  const bool fits = header.fixed.magic == kMagic && header.fixed.format == kFormat &&
                    header.fixed.tables == specs.size() &&
                    header.fixed.fingerprint == digest(std::as_bytes(std::span(text)));
  if (!fits) return Error{Blame::kPeer, cat(name, " is no file of this job's tables")};
  if (header.version != version) {
    return Error{Blame::kPeer, cat(name, " does not stand still at version ", version)};
  }
  std::vector<std::uint64_t> rows;
  for (std::size_t t = 0; t < specs.size(); ++t) {
    TableWords words;
    std::memcpy(&words, beginning.data() + kWordsOffset + t * sizeof words, sizeof words);
    rows.push_back(words.rows[version % 2]);
    if (rows.back() > std::uint64_t{1} << kLastBits) {
      return Error{Blame::kPeer, cat(name, " has a damaged number of rows")};
    }
  }
  return rows;
}

}  // namespace

Result<Departure> departure(const std::string& path, const std::vector<Spec>& specs,
                            Version version) {
  auto file = os::find_file(path, os::Access::kRead);
  if (!file) return file.error();
  if (!file->file) return Error{Blame::kWorld, cat("there is no ", path)};
  std::vector<std::byte> beginning(kBeginning);
  if (!os::read_at(file->file.get(), 0, beginning)) return unread(path);
  const auto rows = rows_in(beginning, specs, version, path);
  if (!rows) return rows.error();
  Header header;
  std::memcpy(&header, beginning.data(), sizeof header);
  std::uint64_t end = 0;
  const auto regions = regions_of(specs, header.fixed.capacity, end);
  if (end != file->bytes) return Error{Blame::kWorld, cat(path, " does not fit its head")};
  Departure all{*std::move(file), {{0, kBeginning}}};
  for (std::size_t t = 0; t < specs.size(); ++t) {
    if ((*rows)[t] == 0) continue;
    all.ranges.push_back({regions[t].keys.offset, (*rows)[t] * sizeof(std::uint64_t)});
    all.ranges.push_back({regions[t].rows.offset, (*rows)[t] * specs[t].row_bytes()});
    all.ranges.push_back({regions[t].ages.offset, (*rows)[t] * sizeof(std::uint64_t)});
  }
  return all;
}

Arrival::Arrival(Tables& tables, std::uint64_t run_id, Version version)
    : tables_(tables), run_id_(run_id), version_(version), beginning_(kBeginning) {
  HF_ASSERT(tables.fresh());
}

// Looks at the beginning, once it has come: takes the memory for the rest, and says where it goes.
Status Arrival::see() {
  Tables::State& state = *tables_.state_;
  const auto rows = rows_in(beginning_, state.specs, version_, "what came");
  if (!rows) return rows.error();
  Header header;
  std::memcpy(&header, beginning_.data(), sizeof header);
  if (header.fixed.run_id != run_id_) {
    return Error{Blame::kPeer, "what came is of another run of the job"};
  }
  rows_ = *rows;
  expected_.clear();
  for (std::size_t t = 0; t < rows_.size(); ++t) {
    Table& table = state.tables[t];
    const std::uint64_t count = rows_[t];
    if (count == 0) continue;
    if (Status taken = state.reserve_rows(table, count); !taken) return taken;
    expected_.push_back(std::as_writable_bytes(std::span(table.keys, count)));
    expected_.emplace_back(table.rows, count * table.spec->row_bytes());
    expected_.push_back(std::as_writable_bytes(std::span(table.ages, count)));
  }
  return {};
}

Result<std::span<std::byte>> Arrival::place(const std::vector<arena::Range>& ranges,
                                            std::size_t range) {
  if (range == 0) {
    rows_.clear();
    bytes_ = kBeginning;
    if (ranges.front().bytes == kBeginning) return std::span(beginning_);
    return Error{Blame::kPeer, "what came does not begin as a table file"};
  }
  if (range == 1) {
    if (Status seen = see(); !seen) return seen.error();
  }
  if (ranges.size() != expected_.size() + 1 || ranges[range].bytes != expected_[range - 1].size()) {
    return Error{Blame::kPeer, "what came does not fit the number of its rows"};
  }
  bytes_ += ranges[range].bytes;
  return expected_[range - 1];
}

Status Arrival::copy(const std::string& path) {
  const auto from = departure(path, tables_.specs(), version_);
  if (!from) return from.error();
  for (std::size_t i = 0; i < from->ranges.size(); ++i) {
    const auto to = place(from->ranges, i);
    if (!to) return to.error();
    if (!os::read_at(from->file.file.get(), from->ranges[i].offset, *to)) return unread(path);
  }
  return end();
}

Status Arrival::end() {
  if (rows_.empty()) {  // Only the beginning has come.
    if (Status seen = see(); !seen) return seen;
    if (!expected_.empty()) return Error{Blame::kPeer, "not all rows of the tables have come"};
  }
  Tables::State& state = *tables_.state_;
  const std::size_t at = version_ % 2;
  for (std::size_t t = 0; t < rows_.size(); ++t) {
    TableWords theirs;
    std::memcpy(&theirs, beginning_.data() + kWordsOffset + t * sizeof theirs, sizeof theirs);
    state.fill(state.tables[t], version_, rows_[t], theirs.arguments[at]);
  }
  Header theirs;
  std::memcpy(&theirs, beginning_.data(), sizeof theirs);
  state.commit_filled(version_, theirs.positions[at]);
  return {};
}

}  // namespace holdfast::table
