// State: the table file behind Tables: its regions, its memory, and what is to be done when it is
// opened. Only for the files of this folder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "os/pool.h"
#include "os/sparse_file.h"
#include "table/format.h"
#include "table/gathered.h"
#include "table/index.h"
#include "table/initial.h"
#include "table/tables.h"

namespace holdfast::table {

// A region of a table file, and how much memory it has, as far as this process knows.
struct Region {
  std::uint64_t offset = 0;
  std::uint64_t room = 0;   // Where the next one begins.
  std::uint64_t taken = 0;  // From its beginning.
};

struct Regions {
  Region keys;       // By row: std::uint64_t.
  Region rows;       // By row: Spec::row_bytes().
  Region ages;       // By row: std::uint64_t.
  Region touched;    // By touched row: its number, std::uint32_t.
  Region gradients;  // By touched row: Spec::values float32.
  Region index;
};

// The regions of tables in a file, each of which can hold `capacity` bytes of rows; and its end.
[[nodiscard]] std::vector<Regions> regions_of(const std::vector<Spec>& specs,
                                              std::uint64_t capacity, std::uint64_t& end);

// One table of the file.
struct Table {
  const Spec* spec;
  TableWords* words;
  Regions regions;
  std::uint64_t* keys;
  std::byte* rows;
  std::uint64_t* ages;
  std::uint32_t* touched;
  float* gradients;
  Index index;
  Beginning beginning;
  Gathered gathered;  // What was added since the last stage() or unstage().

  [[nodiscard]] std::byte* row(std::uint64_t number) const {
    return rows + number * spec->row_bytes();
  }
  [[nodiscard]] bool is_evicted(std::uint64_t number, Version v) const {
    return ages[number] < words->arguments[v % 2].evicts_before;
  }
  // Asks the processor for what find() will need for keys after the i-th, and for their values.
  void ask_for(std::span<const std::uint64_t> keys_to_find, std::size_t i, bool values) const {
    constexpr std::size_t kAhead = 8;
    constexpr std::size_t kLine = 64;
    if (i + 2 * kAhead < keys_to_find.size()) index.ask_for(keys_to_find[i + 2 * kAhead]);
    if (i + kAhead >= keys_to_find.size()) return;
    const std::uint64_t likely = index.guess(keys_to_find[i + kAhead]);
    if (likely == kNoRow || !values) return;
    const std::size_t bytes = std::min<std::size_t>(spec->value_bytes(), 8 * kLine);
    for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row(likely) + at);
  }
};

struct Tables::State {
  State(std::string its_path, std::vector<Spec> its_specs, os::SparseFile its_file)
      : path(std::move(its_path)), specs(std::move(its_specs)), file(std::move(its_file)) {
    std::uint64_t end = 0;
    const auto regions = regions_of(specs, header().fixed.capacity, end);
    const os::Mapping& mapped = file.mapping();
    for (std::size_t t = 0; t < specs.size(); ++t) {
      const Regions& r = regions[t];
      auto* const words = mapped.as<TableWords>(kWordsOffset) + t;
      auto* const keys = mapped.as<std::uint64_t>(r.keys.offset);
      tables.push_back({.spec = &specs[t],
                        .words = words,
                        .regions = r,
                        .keys = keys,
                        .rows = mapped.at(r.rows.offset),
                        .ages = mapped.as<std::uint64_t>(r.ages.offset),
                        .touched = mapped.as<std::uint32_t>(r.touched.offset),
                        .gradients = mapped.as<float>(r.gradients.offset),
                        .index = {mapped.as<std::uint32_t>(r.index.offset), keys, &words->index},
                        .beginning = Beginning(specs[t]),
                        .gathered = {}});
    }
    looked_at.resize(tables.size());
  }

  [[nodiscard]] Header& header() const { return *file.mapping().as<Header>(0); }
  [[nodiscard]] Slot* slots() const { return file.mapping().as<Slot>(kSlotsOffset); }

  static Result<State> make(const std::string& path, std::vector<Spec> specs, std::uint64_t run_id);
  static Result<std::vector<Spec>> specs_in(const std::string& path, const os::Mapping& mapping);
  Status recover();
  Status check_words() const;
  Status check_slots(std::uint64_t all) const;
  Status reserve(const Table& table, Region& region, std::uint64_t bytes);
  void give_back(Region& region, std::uint64_t used);
  Status add(Table& table, std::uint64_t key, const float* gradients);
  Status reserve_rows(Table& table, std::uint64_t after);
  void fill(Table& table, Version v, std::uint64_t rows, const Arguments& arguments);
  Status take_rows_of(const State& other);
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> count_rows() const;
  void commit_filled(Version v, const arena::Position& position);
  void split(std::size_t threads, Version n);
  void work(std::size_t slot, Version n);
  void apply(const Table& table, const Update& update, std::uint64_t k, Version n, Slot& slot);
  void end_update(Version n);
  void forget();
  void know_what_is_taken();
  void drop_older_indexes(Table& table);
  [[nodiscard]] static std::uint64_t index_end(const Table& table);
  // Whether an update was begun and is not at its end.
  [[nodiscard]] bool is_begun() const {
    return header().updating == header().staged && header().staged != header().version;
  }

  std::string path;
  std::vector<Spec> specs;
  os::SparseFile file;
  std::vector<Table> tables;
  std::unique_ptr<os::Pool> pool;
  std::vector<std::uint64_t> looked_at;  // By table: the evicts_before that shrink() has seen.
  Status refused;                        // Why a gradient of the step under way was refused.
};

}  // namespace holdfast::table
