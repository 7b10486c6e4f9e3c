#include "table/tables.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "arena/format.h"
#include "arena/slots.h"
#include "base/assert.h"
#include "base/digest.h"
#include "base/prng.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/float_mode.h"
#include "os/pool.h"
#include "table/state.h"

namespace holdfast::table {
namespace {

using arena::load;
using arena::publish;

// Below this many rows waking another thread costs more than it saves.
constexpr std::uint64_t kRowsWorthAThread = 256;
// The ends of names of files that shrink() makes, and that a process leaves which dies in it.
constexpr const char* kSmaller = ".smaller";
constexpr const char* kNewSmaller = ".smaller.new";
constexpr std::uint64_t kShareWorthACopy = 8;

}  // namespace

Status Tables::State::add(Table& table, std::uint64_t key, const float* gradients) {
  const std::size_t values = table.spec->values;
  const auto [k, is_new] = table.gathered.place_of(key);
  float* const sum = table.gradients + k * values;
  if (!is_new) {
    for (std::size_t i = 0; i < values; ++i) sum[i] += gradients[i];
    return {};
  }
  Regions& r = table.regions;
  Status taken = reserve(table, r.gradients, (k + 1) * values * sizeof(float));
  if (taken) taken = reserve(table, r.touched, (k + 1) * sizeof(std::uint32_t));
  if (!taken) {
    table.gathered.forget_last();
    return taken;
  }
  std::memcpy(sum, gradients, values * sizeof(float));
  return {};
}

// Gives a fresh table the `rows` rows whose keys and values are there, as those of version v. Takes
// effect by commit_filled().
void Tables::State::fill(Table& table, Version v, std::uint64_t rows, const Arguments& arguments) {
  table.index.grow(0, rows);
  drop_older_indexes(table);
  table.words->rows[v % 2] = rows;
  table.words->touched[v % 2] = 0;
  table.words->arguments[v % 2] = arguments;
}

// All rows of `other` that are not evicted. This state is fresh.
Status Tables::State::take_rows_of(const State& other) {
  const Version v = other.header().version;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    Table& table = tables[t];
    const Table& from = other.tables[t];
    std::uint64_t rows = 0;
    for (std::uint64_t row = 0; row < from.words->rows[v % 2]; ++row) {
      if (from.is_evicted(row, v)) continue;
      if (Status taken = reserve_rows(table, rows + 1); !taken) return taken;
      table.keys[rows] = from.keys[row];
      table.ages[rows] = from.ages[row];
      std::memcpy(table.row(rows++), from.row(row), table.spec->row_bytes());
    }
    fill(table, v, rows, from.words->arguments[v % 2]);
  }
  commit_filled(v, other.header().positions[v % 2]);
  return {};
}

void Tables::State::commit_filled(Version v, const arena::Position& position) {
  header().positions[v % 2] = position;
  publish(header().updating, 0);
  publish(header().staged, v);
  publish(header().version, v);
}

void Tables::State::split(std::size_t threads, Version n) {
  std::uint64_t all = 0;
  for (const Table& table : tables) all += table.words->touched[n % 2];
  for (std::size_t i = 0; i < threads; ++i) {
    publish(slots()[i].progress, all * i / threads * 2);
    slots()[i].end = all * (i + 1) / threads;
  }
  publish(header().threads, threads);
}

// A new row begins and is updated in one go: if that is cut short, it begins again.
void Tables::State::apply(const Table& table, const Update& update, std::uint64_t k, Version n,
                          Slot& slot) {
  const Spec& spec = *table.spec;
  const std::uint64_t number = table.touched[k];
  std::byte* const row = table.row(number);
  const float* const gradients = table.gradients + k * spec.values;
  const std::uint64_t clock = table.words->arguments[n % 2].clock;
  if (table.ages[number] == clock) return;  // Only the progress was not told any more.
  if (number >= table.words->rows[(n - 1) % 2] || table.is_evicted(number, n - 1)) {
    float values[kMostValues];
    table.beginning.fill(table.keys[number], {values, spec.values});
    write_values(spec, {values, spec.values}, row);
    begin_state(spec, row);
    update.apply(row, gradients);
    return publish(table.ages[number], clock);
  }
  const std::uint64_t line = slot.progress / 2;
  if (slot.progress % 2 == 1) {
    std::memcpy(row, slot.undo, spec.row_bytes());
  } else {
    std::memcpy(slot.undo, row, spec.row_bytes());
    publish(slot.progress, line * 2 + 1);
  }
  update.apply(row, gradients);
  publish(table.ages[number], clock);
}

// The slot's part of update n, from where it is.
void Tables::State::work(std::size_t index, Version n) {
  constexpr std::uint64_t kAhead = 8;
  Slot& slot = slots()[index];
  std::uint64_t first = 0;  // Of the table, among all touched rows.
  for (const Table& table : tables) {
    const std::uint64_t count = table.words->touched[n % 2];
    const Update update(*table.spec, table.words->arguments[n % 2]);
    const std::uint64_t end = std::min(slot.end, first + count);
    for (std::uint64_t at = std::max(slot.progress / 2, first); at < end; ++at) {
      const std::uint64_t k = at - first;
      if (k + kAhead < count) __builtin_prefetch(table.row(table.touched[k + kAhead]), 1);
      apply(table, update, k, n, slot);
      publish(slot.progress, (at + 1) * 2);
    }
    first += count;
  }
}

void Tables::State::end_update(Version n) {
  for (Table& table : tables) {
    const unsigned least = table.index.least_bits();
    table.index.grow(table.words->rows[(n - 1) % 2], table.words->rows[n % 2]);
    if (table.index.least_bits() != least) drop_older_indexes(table);
  }
  publish(header().version, n);
  forget();
}

void Tables::State::forget() {
  for (Table& table : tables) table.gathered.clear();
  refused = Status();
}

Result<Tables> Tables::open(const std::string& path, std::vector<Spec> specs,
                            std::uint64_t run_id) {
  if (Status good = check(specs); !good) return good.error();
  for (const char* end : {kSmaller, kNewSmaller}) ::unlink((path + end).c_str());
  Result<os::SparseFile> file = os::SparseFile::open(path);
  if (!file) return file.error();
  if (file->mapping()) {
    const Header& header = *file->mapping().as<Header>(0);
    const bool is_of_run =
        file->mapping().bytes().size() < kRegionsOffset || header.fixed.run_id == run_id;
    Result<std::vector<Spec>> there = State::specs_in(path, file->mapping());
    if (!there && is_of_run) return there.error();
    if (there && is_of_run && header.version != kNoVersion) {
      const std::string other = difference(*there, specs);
      if (!other.empty()) {
        return Error{Blame::kUser,
                     cat("The table file ", path, " of this run is for other tables: ", other,
                         "; continue with the same tables, or start a new run.")};
      }
      auto state = std::make_unique<State>(path, std::move(specs), *std::move(file));
      if (Status recovered = state->recover(); !recovered) return recovered.error();
      return Tables(std::move(state));
    }
  }
  Result<State> made = State::make(path, std::move(specs), run_id);
  if (!made) return made.error();
  return Tables(std::make_unique<State>(*std::move(made)));
}

Tables::Tables(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tables::Tables(Tables&&) noexcept = default;
Tables& Tables::operator=(Tables&&) noexcept = default;
Tables::~Tables() = default;

const std::vector<Spec>& Tables::specs() const {
  return state_->specs;
}
std::uint64_t Tables::run_id() const {
  return state_->header().fixed.run_id;
}
Version Tables::version() const {
  return load(state_->header().version);
}
Version Tables::staged() const {
  return fresh() ? kNoVersion : load(state_->header().staged);
}
arena::Position Tables::position() const {
  HF_ASSERT(!fresh());
  return state_->header().positions[version() % 2];
}
std::uint64_t Tables::rows(std::size_t t) const {
  return fresh() ? 0 : state_->tables.at(t).words->rows[version() % 2];
}
std::uint64_t Tables::updates(std::size_t t) const {
  return fresh() ? 0 : state_->tables.at(t).words->arguments[version() % 2].update_count;
}
std::uint64_t Tables::clock(std::size_t t) const {
  return fresh() ? 0 : state_->tables.at(t).words->arguments[version() % 2].clock;
}
std::uint64_t Tables::bytes() const {
  return state_->file.taken();
}

void Tables::begin(Version v, const arena::Position& position) {
  HF_ASSERT(fresh() && v != kNoVersion);
  for (Table& table : state_->tables) state_->fill(table, v, 0, {.update_count = 0});
  state_->commit_filled(v, position);
}

void Tables::read(std::size_t t, std::span<const std::uint64_t> keys, std::span<float> out) const {
  const os::DefaultFloatMode mode;
  const Table& table = state_->tables.at(t);
  const std::size_t values = table.spec->values;
  HF_ASSERT(out.size() == keys.size() * values);
  const std::uint64_t count = rows(t);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    table.ask_for(keys, i, true);
    const std::uint64_t number = table.index.find(keys[i], count);
    const std::span<float> to = out.subspan(i * values, values);
    const bool is_there = number != kNoRow && !table.is_evicted(number, version());
    is_there ? read_values(*table.spec, table.row(number), to) : table.beginning.fill(keys[i], to);
  }
}

Status Tables::add(std::size_t t, std::span<const std::uint64_t> keys,
                   std::span<const float> gradients) {
  Table& table = state_->tables.at(t);
  const std::size_t values = table.spec->values;
  HF_ASSERT(!fresh() && staged() == version() && gradients.size() == keys.size() * values);
  const os::DefaultFloatMode mode;
  for (std::size_t i = 0; i < keys.size() && state_->refused; ++i) {
    state_->refused = state_->add(table, keys[i], gradients.data() + i * values);
  }
  return state_->refused;
}

Status Tables::stage(Version n, const arena::Position& position,
                     std::span<const Arguments> arguments) {
  HF_ASSERT(!fresh() && n == version() + 1 && arguments.size() == state_->tables.size());
  publish(state_->header().staged, version());
  if (!state_->refused) return state_->refused;
  for (std::size_t t = 0; t < arguments.size(); ++t) {
    Table& table = state_->tables[t];
    const auto& keys = table.gathered.keys();
    const Status good = keys.empty() ? Status{} : check(*table.spec, arguments[t]);
    if (!good) return good;
    const std::uint64_t before = rows(t);
    std::uint64_t after = before;
    for (std::size_t k = 0; k < keys.size(); ++k) {
      table.ask_for(keys, k, false);
      const std::uint64_t number = table.index.find(keys[k], before);
      table.touched[k] = static_cast<std::uint32_t>(number != kNoRow ? number : after++);
    }
    if (Status taken = state_->reserve_rows(table, after); !taken) return taken;
    for (std::size_t k = 0; k < keys.size(); ++k) {
      if (table.touched[k] >= before) table.keys[table.touched[k]] = keys[k];
    }
    table.words->rows[n % 2] = after;
    table.words->touched[n % 2] = static_cast<std::uint32_t>(keys.size());
    table.words->arguments[n % 2] = arguments[t];
    const Arguments& last = table.words->arguments[(n - 1) % 2];
    Arguments& now = table.words->arguments[n % 2];
    // A row that is touched gets an age that no row has yet.
    now.clock = std::max(now.clock, last.clock + (keys.empty() ? 0 : 1));
    now.evicts_before = std::max(last.evicts_before, std::min(now.evicts_before, now.clock));
  }
  state_->header().positions[n % 2] = position;
  publish(state_->header().staged, n);
  return {};
}

void Tables::unstage() {
  State& state = *state_;
  publish(state.header().staged, version());
  state.forget();
  // The step may have been given up because there is no room for it.
  for (Table& table : state.tables) {
    Regions& r = table.regions;
    const std::uint64_t count = table.words->rows[version() % 2];
    state.give_back(r.gradients, 0);
    state.give_back(r.touched, 0);
    state.give_back(r.rows, count * table.spec->row_bytes());
    state.give_back(r.keys, count * sizeof(std::uint64_t));
    state.give_back(r.ages, count * sizeof(std::uint64_t));
    state.give_back(r.index, State::index_end(table));
  }
}

void Tables::update(std::size_t threads) {
  HF_ASSERT(threads >= 1 && threads <= kSlots);
  State& state = *state_;
  Header& h = state.header();
  const arena::SlotLocks lock(state.slots(), 1);
  HF_ASSERT(lock.all() && !fresh() && staged() == version() + 1);
  const Version n = staged();
  std::uint64_t all = 0;
  for (const Table& table : state.tables) all += table.words->touched[n % 2];
  threads = std::min<std::size_t>(threads, all / kRowsWorthAThread + 1);
  if (threads > 1 && (!state.pool || state.pool->size() < threads)) {
    state.pool = std::make_unique<os::Pool>(threads);
  }
  state.split(threads, n);
  publish(h.updating, n);  // From here on the update is finished, by us or by a successor.
  if (threads == 1) {
    const os::DefaultFloatMode mode;
    state.work(0, n);
  } else {
    state.pool->run(threads, [&](std::size_t slot) {
      const os::DefaultFloatMode mode;
      std::optional<arena::SlotLocks<Slot>> own;
      if (slot > 0) {  // Slot 0 is held by update().
        own.emplace(state.slots() + slot, 1);
        HF_ASSERT(own->all());
      }
      // A thread of a dying process may get here after a successor has finished its rows.
      if (load(h.version) + 1 == n) state.work(slot, n);
    });
  }
  state.end_update(n);
}

// How many rows the tables have, and how many of them are evicted.
std::pair<std::uint64_t, std::uint64_t> Tables::State::count_rows() const {
  const Version v = header().version;
  std::uint64_t all = 0;
  std::uint64_t evicted = 0;
  for (const Table& table : tables) {
    const std::uint64_t rows = table.words->rows[v % 2];
    all += rows;
    for (std::uint64_t row = 0; row < rows; ++row)
      evicted += std::uint64_t{table.is_evicted(row, v)};
  }
  return {all, evicted};
}

Status Tables::shrink() {
  HF_ASSERT(!fresh() && staged() == version());
  std::vector<std::uint64_t> bounds;
  for (const Table& table : state_->tables) {
    bounds.push_back(table.words->arguments[version() % 2].evicts_before);
  }
  if (bounds == state_->looked_at) return {};
  state_->looked_at = bounds;
  const auto [all, evicted] = state_->count_rows();
  if (evicted == 0 || evicted < all / kShareWorthACopy) return {};
  const std::string path = state_->path;
  auto smaller = State::make(path + kSmaller, state_->specs, state_->header().fixed.run_id);
  if (!smaller) return smaller.error();
  const Status moved = smaller->take_rows_of(*state_);
  if (!moved || ::rename(smaller->path.c_str(), path.c_str()) != 0) {
    const Error error = os::system_error(cat("cannot rename ", smaller->path), errno);
    ::unlink(smaller->path.c_str());
    return moved ? error : moved;
  }
  smaller->path = path;
  smaller->pool = std::move(state_->pool);
  smaller->looked_at = std::move(bounds);
  state_ = std::make_unique<State>(*std::move(smaller));
  return {};
}

void Tables::remove(const std::string& path) {
  for (const char* end : {"", kSmaller, kNewSmaller}) ::unlink((path + end).c_str());
}

std::uint64_t Tables::digest() const {
  std::uint64_t sum = 0;
  for (std::size_t t = 0; t < state_->tables.size(); ++t) {
    const Table& table = state_->tables[t];
    for (std::uint64_t row = 0; row < rows(t); ++row) {
      if (table.is_evicted(row, version())) continue;
      sum +=
          holdfast::digest({table.row(row), table.spec->row_bytes()}, derive(t, table.keys[row]));
    }
  }
  return sum;
}

std::vector<std::uint64_t> Tables::keys(std::size_t t) const {
  const Table& table = state_->tables.at(t);
  std::vector<std::uint64_t> all;
  for (std::uint64_t row = 0; row < rows(t); ++row) {
    if (!table.is_evicted(row, version())) all.push_back(table.keys[row]);
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace holdfast::table
