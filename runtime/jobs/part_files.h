// PartFiles: the files of a snapshot, one for each rank, for those who load it. Whatever is wrong
// with them is no fault of the program's, so all errors are kWorld.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {

class PartFiles {
 public:
  // Of the snapshot `name` in the folder `dir`.
  static Result<PartFiles> open(const std::string& dir, const std::string& name);

  [[nodiscard]] Result<snapshot::Shard> part(Rank rank) const;
  [[nodiscard]] std::string path(Rank rank) const { return snapshot::path_of(dir_, name_, rank); }
  [[nodiscard]] Error unfit(Rank rank, const std::string& what) const;
  [[nodiscard]] static Error unreadable(const Error& why) { return {Blame::kWorld, why.what}; }

 private:
  std::string dir_;
  std::string name_;
  snapshot::Manifest manifest_;
};

}  // namespace holdfast::runtime
