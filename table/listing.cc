#include "table/listing.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "table/saved_file.h"

namespace holdfast::table {
namespace {

// Lists one table; adds what is wrong to the problems.
class Survey {
 public:
  Survey(Listing& listing, const std::string& folder, std::size_t t)
      : listing_(listing), folder_(folder), spec_(listing.saved.specs[t]), t_(t) {}

  void run(bool verifies) {
    for (const std::string& file : listing_.saved.files_of(t_)) see(folder_ + "/" + file, verifies);
    Listed& listed = listing_.tables[t_];
    listed.updates = updates_.value_or(0);
    std::sort(keys_.begin(), keys_.end());
    const auto twice = std::adjacent_find(keys_.begin(), keys_.end());
    if (twice == keys_.end()) return;
    refuse(cat("table ", spec_.name, " in ", folder_, " has key ", *twice, " twice"));
  }

 private:
  void see(const std::string& path, bool verifies) {
    const auto opened = open_file(path, spec_, listing_.saved, updates_);
    if (!opened) return refuse(opened.error().what);
    Listed& listed = listing_.tables[t_];
    listed.rows += opened->rows;
    const Part& last = opened->parts.back();
    listed.bytes += last.at + opened->rows * last.bytes;
    if (!verifies) return;
    const Status read = read_rows(path, spec_, *opened, [this](std::uint64_t key, const auto*) {
      keys_.push_back(key);
      return Status();
    });
    if (!read) refuse(read.error().what);
  }
  void refuse(std::string problem) { listing_.tables[t_].problems.push_back(std::move(problem)); }

  Listing& listing_;
  const std::string& folder_;
  const Spec& spec_;
  const std::size_t t_;
  std::optional<std::uint64_t> updates_;
  std::vector<std::uint64_t> keys_;
};

}  // namespace

Result<Listing> list(const std::string& folder, bool verifies) {
  auto saved = read_manifest(folder);
  if (!saved) return saved.error();
  Listing listing{.saved = *std::move(saved), .tables = {}};
  listing.tables.resize(listing.saved.specs.size());
  for (std::size_t t = 0; t < listing.tables.size(); ++t) Survey(listing, folder, t).run(verifies);
  return listing;
}

Result<std::size_t> table_named(const Saved& saved, const std::string& folder,
                                const std::string& name) {
  std::string there;
  for (std::size_t t = 0; t < saved.specs.size(); ++t) {
    if (saved.specs[t].name == name || (name.empty() && saved.specs.size() == 1)) return t;
    there += cat(t == 0 ? "" : ", ", saved.specs[t].name);
  }
  if (there.empty()) return Error{Blame::kUser, cat("the save in ", folder, " has no table")};
  if (!name.empty()) {
    return Error{Blame::kUser,
                 cat("the save in ", folder, " has no table ", name, "; it has ", there)};
  }
  return Error{Blame::kUser, cat("the save in ", folder, " has ", saved.specs.size(),
                                 " tables: ", there, ". Say which (--table NAME)")};
}

}  // namespace holdfast::table
