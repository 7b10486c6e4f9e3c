#include "runtime/jobs/part_files.h"

#include <utility>

#include "base/text.h"

namespace holdfast::runtime {

Result<PartFiles> PartFiles::open(const std::string& dir, const std::string& name) {
  auto manifest = snapshot::read_manifest(dir, name);
  if (!manifest) return unreadable(manifest.error());
  PartFiles files;
  files.dir_ = dir;
  files.name_ = name;
  files.manifest_ = *std::move(manifest);
  return files;
}

Result<snapshot::Shard> PartFiles::part(Rank rank) const {
  const auto at = static_cast<std::size_t>(rank);
  if (at >= manifest_.files.size()) return unfit(rank, "it is not there");
  auto shard = snapshot::open_shard(dir_, name_, manifest_.files[at]);
  if (!shard) return unreadable(shard.error());
  return shard;
}

Error PartFiles::unfit(Rank rank, const std::string& what) const {
  return {Blame::kWorld, cat(path(rank), " can not be used: ", what)};
}

}  // namespace holdfast::runtime
