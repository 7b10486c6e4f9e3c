#include "table/exporting.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "table/listing.h"
#include "table/saved.h"
#include "table/saved_file.h"

namespace holdfast::table {
namespace {

// A row, and where it lies. There are fewer files than 2^16, and rows than 2^48 in one.
constexpr unsigned kRowBits = 48;
struct Place {
  std::uint64_t key;
  std::uint64_t where;  // The file's number in the upper 16 bits, and the row's.
};

// The files of one table, all open, and the order of their rows.
class Sorted {
 public:
  explicit Sorted(const Spec& spec) : spec_(spec) {}

  Status open(const std::string& folder, const Saved& saved, std::size_t t) {
    std::uint64_t rows = 0;
    for (const std::string& name : saved.files_of(t)) {
      const std::string path = folder + "/" + name;
      auto opened = open_file(path, spec_, saved, updates_);
      if (!opened) return opened.error();
      rows += opened->rows;
      files_.push_back({path, *std::move(opened)});
    }
    places_.reserve(rows);
    for (std::size_t f = 0; f < files_.size(); ++f) {
      if (Status read = read_keys(f); !read) return read;
    }
    std::sort(places_.begin(), places_.end(),
              [](const Place& a, const Place& b) { return a.key < b.key; });
    const auto twice =
        std::adjacent_find(places_.begin(), places_.end(),
                           [](const Place& a, const Place& b) { return a.key == b.key; });
    if (twice == places_.end()) return {};
    return Error{Blame::kUser,
                 cat("table ", spec_.name, " in ", folder, " has key ", twice->key, " twice")};
  }

  // Rows from number `from` on, in the order of their keys.
  Status read(std::uint64_t from, std::uint64_t count, Block& block) {
    std::vector<std::byte> row(spec_.row_bytes());
    for (std::uint64_t i = 0; i < count; ++i) {
      const Place& place = places_[from + i];
      File& file = files_[place.where >> kRowBits];
      const std::uint64_t number = place.where & ((std::uint64_t{1} << kRowBits) - 1);
      for (std::size_t p = 1; p < file.opened.parts.size(); ++p) {
        const Part& part = file.opened.parts[p];
        const std::span to(row.data() + (p == 1 ? 0 : spec_.state_offset()), part.bytes);
        if (os::read_at(file.opened.file.get(), part.at + number * part.bytes, to)) continue;
        return unusable(file.path, "it can not be read to its end");
      }
      file.digest += digest_of(spec_, place.key, row.data());
      put_row(spec_, place.key, row.data(), i, block);
    }
    return {};
  }

  // Once all rows were read.
  [[nodiscard]] Status check() const {
    for (const File& file : files_) {
      if (file.digest != file.opened.about.digest) {
        return unusable(file.path, "its rows are damaged");
      }
    }
    return {};
  }

  [[nodiscard]] std::uint64_t rows() const { return places_.size(); }
  [[nodiscard]] std::uint64_t updates() const { return updates_.value_or(0); }

 private:
  struct File {
    std::string path;
    Opened opened;
    std::uint64_t digest = 0;  // Of the rows that were read.
  };

  Status read_keys(std::size_t f) {
    constexpr std::uint64_t kAtOnce = 65536;
    const auto& [path, opened, digest] = files_[f];
    std::vector<std::uint64_t> keys;
    for (std::uint64_t from = 0; from < opened.rows; from += kAtOnce) {
      keys.resize(std::min(kAtOnce, opened.rows - from));
      const auto bytes = std::as_writable_bytes(std::span(keys));
      const std::uint64_t at = opened.parts[0].at + from * sizeof keys[0];
      if (!os::read_at(opened.file.get(), at, bytes)) {
        return unusable(path, "it can not be read to its end");
      }
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (keys[i] > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
          return Error{Blame::kUser, cat(path, " has key ", keys[i],
                                         ", which no tensor of 64-bit integers can hold")};
        }
        places_.push_back({keys[i], f << kRowBits | (from + i)});
      }
    }
    return {};
  }

  const Spec& spec_;
  std::vector<File> files_;
  std::vector<Place> places_;
  std::optional<std::uint64_t> updates_;
};

// Whether a file may get this name.
Status may_write(const std::string& folder, const std::string& file, bool replaces) {
  struct stat about {};
  if (::stat(file.c_str(), &about) != 0) return {};
  if (!S_ISREG(about.st_mode)) {
    return Error{Blame::kUser, cat(file, " is there, and is no plain file: name another one")};
  }
  if (!replaces) {
    return Error{Blame::kUser, cat(file, " is there already; --force replaces it")};
  }
  struct stat saved {};
  const std::string above = os::folder_of(file);
  const bool is_beside = ::stat(folder.c_str(), &about) == 0 &&
                         ::stat(above.c_str(), &saved) == 0 && about.st_dev == saved.st_dev &&
                         about.st_ino == saved.st_ino;
  if (!is_beside) return {};
  return Error{Blame::kUser, cat(file,
                                 " is in the folder of the save, of which nothing is "
                                 "replaced: name a file elsewhere")};
}

}  // namespace

Result<Exported> export_table(const std::string& folder, const std::string& name,
                              const std::string& file, bool replaces) {
  const auto saved = read_manifest(folder);
  if (!saved) return saved.error();
  const auto t = table_named(*saved, folder, name);
  if (!t) return t.error();
  const Spec& spec = saved->specs[*t];
  if (Status may = may_write(folder, file, replaces); !may) return may.error();
  Sorted sorted(spec);
  if (Status opened = sorted.open(folder, *saved, *t); !opened) return opened.error();
  const auto parts = parts_of(spec, sorted.rows());
  const std::string head = head_of({{"table", spec.name},
                                    {"optimizer", name_of(spec.optimizer.rule)},
                                    {"step", cat(saved->step)},
                                    {"updates", cat(sorted.updates())}},
                                   parts);
  NewFile to(file, parts, head.size());
  const std::uint64_t at_once = rows_at_once(spec);
  Block block;
  for (const Part& part : parts) block.emplace_back(at_once * part.bytes);
  for (std::uint64_t from = 0; from < sorted.rows(); from += at_once) {
    const std::uint64_t count = std::min(at_once, sorted.rows() - from);
    if (Status read = sorted.read(from, count, block); !read) return read.error();
    if (Status written = to.write(from, count, block); !written) return written.error();
  }
  if (Status right = sorted.check(); !right) return right.error();
  if (Status may = may_write(folder, file, replaces); !may) return may.error();
  if (Status published = to.publish(head); !published) return published.error();
  return Exported{.spec = spec, .rows = sorted.rows()};
}

}  // namespace holdfast::table
