#include "table/state.h"

#include <cstring>
#include <utility>

#include "arena/format.h"
#include "arena/slots.h"
#include "base/assert.h"
#include "base/digest.h"
#include "base/text.h"
#include "os/files.h"
#include "os/float_mode.h"
#include "os/robust_mutex.h"
#include "os/shared_file.h"

namespace holdfast::table {
namespace {

// Memory is taken in steps of this share of what a region has, so seldom.
constexpr std::uint64_t kShareAhead = 64;
constexpr std::uint64_t kLeastAhead = 256 * 1024;

constexpr std::uint64_t to_pages(std::uint64_t bytes) {
  return (bytes + os::kPage - 1) / os::kPage * os::kPage;
}

std::uint64_t check_of(const Fixed& fixed) {
  return digest(std::as_bytes(std::span(&fixed, 1)).first(offsetof(Fixed, check)));
}

Error damaged(const std::string& path, const char* what) {
  return {Blame::kWorld, cat("The table file ", path, " ", what, "; remove it to begin anew.")};
}

// The addresses of a table file, at most: a process has 128 TiB, and 1.5 TiB under TSan.
#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kMostAddresses = std::uint64_t{1} << 37;
#else
constexpr std::uint64_t kMostAddresses = std::uint64_t{1} << 45;
#endif

std::uint64_t place(Region& region, std::uint64_t at, std::uint64_t room) {
  region = {at, to_pages(room), 0};
  return at + region.room;
}

}  // namespace

std::vector<Regions> regions_of(const std::vector<Spec>& specs, std::uint64_t capacity,
                                std::uint64_t& end) {
  std::vector<Regions> all(specs.size());
  end = kRegionsOffset;
  for (std::size_t t = 0; t < specs.size(); ++t) {
    const std::uint64_t most = capacity / specs[t].row_bytes() + 1;
    end = place(all[t].keys, end, most * sizeof(std::uint64_t));
    end = place(all[t].rows, end, most * specs[t].row_bytes());
    end = place(all[t].ages, end, most * sizeof(std::uint64_t));
    end = place(all[t].touched, end, most * sizeof(std::uint32_t));
    end = place(all[t].gradients, end, most * specs[t].values * sizeof(float));
    unsigned bits = kFirstBits;
    while (bits < kLastBits && (std::uint64_t{1} << bits) / 5 * 4 < most) ++bits;
    end = place(all[t].index, end, index_offset(bits + 1) * sizeof(std::uint32_t));
  }
  return all;
}

Result<Tables::State> Tables::State::make(const std::string& path, std::vector<Spec> specs,
                                          std::uint64_t run_id) {
  const std::string folder = os::folder_of(path);
  if (Status made = os::make_directories(folder); !made) return made.error();
  const std::string text = to_text(specs);
  if (text.size() > kTextBytes) {
    return Error{Blame::kUser, "the names of the tables are too long, all together"};
  }
  // A file system may be enlarged later, so addresses are for more than it has now.
  std::uint64_t capacity = 4 * os::room_in(folder).all;
  std::uint64_t bytes = 0;
  for ((void)regions_of(specs, capacity, bytes); bytes > kMostAddresses; capacity /= 2) {
    (void)regions_of(specs, capacity / 2, bytes);
  }
  Result<os::SparseFile> file = os::SparseFile::make(path, bytes);
  if (!file) return file.error();
  if (Status taken = file->take(0, kRegionsOffset, "the tables"); !taken) {
    file->discard();
    return taken.error();
  }
  Header& header = *file->mapping().as<Header>(0);
  header.fixed = {.run_id = run_id,
                  .fingerprint = holdfast::digest(std::as_bytes(std::span(text))),
                  .text_bytes = text.size(),
                  .tables = specs.size(),
                  .capacity = capacity};
  header.fixed.check = check_of(header.fixed);
  header.version = header.staged = kNoVersion;
  std::memcpy(file->mapping().at(kTextOffset), text.data(), text.size());
  for (std::size_t i = 0; i < kSlots; ++i) {
    os::init_robust(file->mapping().as<Slot>(kSlotsOffset)[i].alive);
  }
  State state(path, std::move(specs), *std::move(file));
  for (Table& table : state.tables) {
    table.words->index = IndexState{}.word();
    if (Status taken = state.reserve_rows(table, 1); !taken) {
      state.file.discard();
      return taken.error();
    }
  }
  if (Status named = os::give_name(path); !named) return named.error();
  return state;
}

// The specifications that a file was made for; none: it is of no use. Error: it is damaged.
Result<std::vector<Spec>> Tables::State::specs_in(const std::string& path,
                                                  const os::Mapping& mapping) {
  std::vector<Spec> specs;
  if (mapping.bytes().size() < kRegionsOffset) return damaged(path, "is cut short");
  const Fixed& fixed = mapping.as<Header>(0)->fixed;
  if (fixed.magic != kMagic || fixed.format != kFormat || fixed.check != check_of(fixed) ||
      fixed.text_bytes > kTextBytes) {
    return damaged(path, "has a damaged head, or is of another release");
  }
  const std::string text(mapping.as<const char>(kTextOffset), fixed.text_bytes);
  std::uint64_t bytes = 0;
  const bool is_sound = holdfast::digest(std::as_bytes(std::span(text))) == fixed.fingerprint &&
                        from_text(text, specs) && specs.size() == fixed.tables;
  if (is_sound) (void)regions_of(specs, fixed.capacity, bytes);
  if (!is_sound || mapping.bytes().size() != bytes) return damaged(path, "does not fit its head");
  return specs;
}

Status Tables::State::check_words() const {
  const Header& h = header();
  const bool is_staged = h.staged != h.version;
  if (is_staged && (h.staged != h.version + 1 || h.staged == kNoVersion)) {
    return damaged(path, "has a damaged version");
  }
  std::uint64_t all = 0;
  for (const Table& table : tables) {
    const TableWords& words = *table.words;
    const Regions& r = table.regions;
    for (int i = 0; i <= int{is_staged}; ++i) {
      const std::size_t v = (h.version + static_cast<Version>(i)) % 2;
      const bool fits = words.rows[v] <= r.rows.room / table.spec->row_bytes() &&
                        words.touched[v] <= r.touched.room / sizeof(std::uint32_t);
      if (!fits) return damaged(path, "has a damaged number of rows");
    }
    if (!IndexState::is_sound(words.index)) return damaged(path, "has a damaged index");
    if (!is_staged) continue;
    const std::size_t n = h.staged % 2;
    all += words.touched[n];
    const std::span touched(table.touched, words.touched[n]);
    const auto is_row = [&](std::uint32_t row) { return row < words.rows[n]; };
    if (!std::all_of(touched.begin(), touched.end(), is_row)) {
      return damaged(path, "has a damaged step");
    }
  }
  return is_begun() ? check_slots(all) : Status();
}

// Whether the slots share out all touched rows of the update that was begun.
Status Tables::State::check_slots(std::uint64_t all) const {
  const std::uint64_t threads = header().threads;
  bool is_sound = threads >= 1 && threads <= kSlots;
  std::uint64_t end = 0;
  for (std::size_t i = 0; is_sound && i < threads; ++i) {
    const Slot& slot = slots()[i];
    is_sound = end * 2 <= slot.progress && slot.progress <= slot.end * 2 && slot.end <= all;
    end = slot.end;
  }
  return is_sound && end == all ? Status() : damaged(path, "has a damaged progress word");
}

// What has memory for certain: the rows of the newest version, committed or staged, and the index.
void Tables::State::know_what_is_taken() {
  for (Table& table : tables) {
    const std::uint64_t count = table.words->rows[header().staged % 2];
    table.regions.rows.taken = to_pages(count * table.spec->row_bytes());
    table.regions.keys.taken = to_pages(count * sizeof(std::uint64_t));
    table.regions.ages.taken = table.regions.keys.taken;
    table.regions.index.taken = index_end(table);
  }
}

Status Tables::State::recover() {
  const arena::SlotLocks locks(slots(), kSlots);
  if (locks.last() == os::Locked::kNot) {
    return Error{Blame::kWorld, cat("The table file ", path,
                                    " is being updated by a process that is alive, though perhaps "
                                    "stopped; end it first.")};
  }
  if (locks.last() == os::Locked::kUnusable) return damaged(path, "has damaged locks");
  if (Status checked = check_words(); !checked) return checked;
  know_what_is_taken();
  if (is_begun()) {
    const os::DefaultFloatMode mode;
    const Version n = header().staged;
    for (std::size_t i = 0; i < header().threads; ++i) work(i, n);
    end_update(n);
  }
  for (Table& table : tables) drop_older_indexes(table);
  return {};
}

// Takes memory up to `bytes` from the region's beginning, and some more.
Status Tables::State::reserve(const Table& table, Region& region, std::uint64_t bytes) {
  if (bytes <= region.taken) return {};
  const std::string whose = cat("table ", table.spec->name);
  if (bytes > region.room) {
    return Error{Blame::kWorld, cat(whose, " can not grow: it has all of ", os::folder_of(path))};
  }
  const std::uint64_t wanted = to_pages(bytes + std::max(kLeastAhead, bytes / kShareAhead));
  std::uint64_t end = std::min(wanted, region.room);
  const std::uint64_t from = region.offset + region.taken;
  Status taken = file.take(from, end - region.taken, whose);
  if (!taken) {  // Then not ahead.
    end = to_pages(bytes);
    taken = file.take(from, end - region.taken, whose);
  }
  if (taken) region.taken = end;
  return taken;
}

// Gives back what was taken beyond `used` bytes, also what a process before this one took.
void Tables::State::give_back(Region& region, std::uint64_t used) {
  const std::uint64_t from = to_pages(used);
  file.drop(region.offset + from, region.room - from);
  region.taken = std::min(region.taken, from);
}

// Where the newest index of the table ends in its region, in bytes.
std::uint64_t Tables::State::index_end(const Table& table) {
  const unsigned bits = IndexState::from(table.words->index).bits;
  return index_offset(bits + 1) * sizeof(std::uint32_t);
}

void Tables::State::drop_older_indexes(Table& table) {
  const std::uint64_t from = index_offset(table.index.least_bits()) * sizeof(std::uint32_t);
  if (from > 0) file.drop(table.regions.index.offset, from);
}

// The memory that an update needs which brings the table to `after` rows.
Status Tables::State::reserve_rows(Table& table, std::uint64_t after) {
  Regions& r = table.regions;
  if (Status s = reserve(table, r.keys, after * sizeof(std::uint64_t)); !s) return s;
  if (Status s = reserve(table, r.ages, after * sizeof(std::uint64_t)); !s) return s;
  if (Status s = reserve(table, r.rows, after * table.spec->row_bytes()); !s) return s;
  const unsigned bits = table.index.bits_for(after);
  if (bits > kLastBits) {
    return Error{Blame::kWorld, cat("table ", table.spec->name, " can not have ", after,
                                    " rows on one server; use more servers")};
  }
  const unsigned first = after <= 1 ? kFirstBits : table.index.least_bits();
  for (unsigned b = first; b <= bits; ++b) {
    const std::uint64_t from = index_offset(b) * sizeof(std::uint32_t);
    const std::uint64_t bytes = sizeof(std::uint32_t) << b;
    if (from + bytes <= r.index.taken) continue;
    if (from + bytes > r.index.room) {
      return Error{Blame::kWorld, cat("table ", table.spec->name, " can not grow: it has all of ",
                                      os::folder_of(path))};
    }
    Status taken = file.take(r.index.offset + from, bytes, cat("table ", table.spec->name));
    if (!taken) return taken;
    r.index.taken = from + bytes;
  }
  return {};
}

}  // namespace holdfast::table
